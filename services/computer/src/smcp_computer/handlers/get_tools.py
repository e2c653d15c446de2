"""`client:get_tools`: the tools that can be called now."""

from smcp_bus.dispatch import Call
from smcp_computer.tools.catalogue import Catalogue
from smcp_proto.schemas.tools import GetToolsReq, GetToolsRet


async def get_tools(request: GetToolsReq, call: Call, *, catalogue: Catalogue) -> GetToolsRet:
    """Answer with the tools of the servers that are ready (data-structures.txt, GetToolsRet)."""
    return GetToolsRet(tools=list(catalogue.listing), req_id=request.req_id)
