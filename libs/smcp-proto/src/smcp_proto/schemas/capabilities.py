"""What a Computer can do beside tools (computer.txt, resources chapter, 1)."""

from smcp_proto.names import Name
from smcp_proto.schemas.base import ServerName, Wire, absent


class ResourceFeatures(Wire):
    """What one MCP server, or a Computer taken as a whole, offers of MCP's resources."""

    subscribe: bool = False
    """Changes of a single resource are told to who subscribed."""
    listChanged: bool = False  # noqa: N815 -- as on the wire
    """A change of the list of resources is told."""


class ResourceCapability(ResourceFeatures):
    """Resources: as flags of the whole Computer, or `aggregate` with `byServer`; both forms are legal."""

    aggregate: ResourceFeatures | None = absent()
    byServer: dict[ServerName, ResourceFeatures] | None = absent()  # noqa: N815

    def whole(self) -> ResourceFeatures:
        """What the Computer as a whole offers, in whichever form it was said."""
        return self.aggregate or ResourceFeatures(subscribe=self.subscribe, listChanged=self.listChanged)


class Capabilities(Wire):
    """In `EnterOfficeReq`, in `SessionInfo` and in `server:update_capabilities`."""

    resources: ResourceCapability | None = absent()


class UpdateCapabilitiesReq(Wire):
    """`server:update_capabilities` and `notify:update_capabilities`: all of what the Computer can do now."""

    computer: Name
    capabilities: Capabilities
