"""What stands before an MCP server over HTTP: it writes down each request, and can keep some waiting for ever."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION: Final = b"mcp-session-id"
NO_SESSION: Final = "-"


class HttpDoor:
    """Args:
    app: the server.
    requests: gets a line `WHAT SESSION` for each request: the method of the JSON-RPC message that is posted, or that
        of HTTP (`GET`, `DELETE`), and its session.
    hold: requests of these are never answered, and do not reach the server.
    """

    def __init__(self, app: ASGIApp, requests: Path | None, hold: Collection[str]) -> None:
        self._app = app
        self._requests = requests
        self._hold = frozenset(hold)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _read(receive) if scope["method"] == "POST" else b""
        what = json.loads(body).get("method", "answer") if body else scope["method"]
        if self._requests is not None:
            session = dict(scope["headers"]).get(SESSION, b"").decode() or NO_SESSION
            with self._requests.open("a") as file:
                file.write(f"{what} {session}\n")
        if what in self._hold:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await self._app(scope, _again(body, receive) if body else receive, send)


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, and then what else is heard."""
    said = False

    async def again() -> Message:
        nonlocal said
        if said:
            return await receive()
        said = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
