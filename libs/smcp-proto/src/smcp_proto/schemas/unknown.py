"""Events that the catalog does not know, and that are passed on as they are."""

from smcp_proto.names import Name
from smcp_proto.schemas.base import ReqId, Wire, absent


class UnknownClientReq(Wire):
    """An unknown `client:*` event: it names its Computer; the rest is between the Agent and that Computer."""

    computer: Name
    agent: Name | None = absent()
    req_id: ReqId | None = absent()
    traceparent: str | None = absent()


class UnknownRet(Wire):
    """The reply to an unknown event: any object."""


class UnknownUpdate(Wire):
    """An unknown `server:update_*`, and the `notify:update_*` that it becomes."""

    computer: Name | None = absent()
