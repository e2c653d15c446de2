"""`client:get_desktop`: the windows of this Computer's MCP servers, as text."""

import asyncio
from typing import Final

import orjson

from smcp_bus.dispatch_types import Call, RawJson
from smcp_computer.desktop.desktop import Desktop
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.desktop import GetDeskTopReq

ANSWER_S: Final = 1.0
"""Of the time that the caller waits, what is kept for the answer."""


async def get_desktop(request: GetDeskTopReq, call: Call, *, desktop: Desktop, max_body: int) -> RawJson:
    """A GetDeskTopRet.

    Raises:
        TooLarge: all windows together are larger than the bus takes: fewer (`desktop_size`) or one (`window`) may fit.
    """
    left = call.deadline - asyncio.get_running_loop().time() - ANSWER_S
    shown = await desktop.show(request.desktop_size, request.window, left=left)
    body = orjson.dumps({"desktops": shown, "req_id": request.req_id})
    if len(body) > max_body:
        raise TooLarge(
            "the desktop is too large: ask for fewer windows", details={"size": len(body), "limit": max_body}
        )
    return RawJson(body)
