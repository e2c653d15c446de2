"""`client:get_desktop`: the windows of this Computer's MCP servers, as text."""

import asyncio
from typing import Final

import orjson

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.desktop import Desktop
from smcp_computer.handlers.room import reply_limit
from smcp_proto.schemas.tools import GetDeskTopReq

ANSWER_S: Final = 1.0
"""Of the time that the caller waits, what is kept for the answer."""
_HEAD: Final = b'{"desktops":['


async def get_desktop(request: GetDeskTopReq, call: Call, *, desktop: Desktop, max_body: int) -> RawJson:
    """A GetDeskTopRet, without the windows for which the answer has no room.

    Raises:
        TooLarge: the window that was asked for (`window`) is larger than the answer may be.
    """
    left = call.deadline - asyncio.get_running_loop().time() - ANSWER_S
    tail = b'],"req_id":%b}' % orjson.dumps(request.req_id)
    shown = await desktop.show(
        request.desktop_size,
        request.window,
        left=left,
        limit=reply_limit(call, max_body),
        around=len(_HEAD) + len(tail),
    )
    return RawJson(b"".join((_HEAD, b",".join(shown), tail)))
