"""The desktop of a Computer (data-structures.txt, desktop; desktop.txt)."""

from pydantic import Field

from smcp_proto.names import Name
from smcp_proto.schemas.base import AgentCallData, ReqId, Wire, absent

Desktop = str
"""One window: its URI, then, where it has text, an empty line and the text."""


class GetDeskTopReq(AgentCallData):
    """`client:get_desktop`."""

    computer: Name
    desktop_size: int | None = absent()
    """At most so many windows; 0 or less: none; absent: all."""
    window: str | None = absent()
    """Only the window with this URI; one that does not exist or is no window URI gives an empty list."""


class GetDeskTopRet(Wire):
    """The reply to `client:get_desktop`."""

    desktops: list[Desktop] = Field(default_factory=list)
    req_id: ReqId | None = absent()
