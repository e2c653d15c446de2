"""Requests to one MCP server whose answers are taken as they come, and the errors they end in."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp.client.client import Client
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError

from smcp_computer.mcp.errors import SAID_ALOUD, BadAnswer, RequestRefused, ServerDied, ServerError, ServerTimedOut
from smcp_computer.mcp.unread import unread

SESSION_TERMINATED: Final = "Session terminated"
"""What the SDK's HTTP transport says where a restarted server does not know the session any more."""

_log = logging.getLogger("smcp_computer.mcp.requests")


class Requests:
    """Args:
    ended: set when the server's side of the connection is gone; set here, too, where an answer says so.
    max_message: bytes that an answer may have.
    """

    def __init__(self, server: str, client: Client, ended: asyncio.Event, *, max_message: int) -> None:
        self.server = server
        self._client = client
        self._ended = ended
        self._max_message = max_message

    async def send(self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float) -> dict[str, Any]:
        """Send a request; its result's JSON as the server sent it. A request given up on is cancelled at the server.

        Args:
            timeout: seconds.

        Raises:
            RequestRefused, ServerTimedOut, ServerDied, AnswerTooLarge: see `errors`.
            BadAnswer: its answer cannot be read, or asks for input, which a Computer cannot give.
        """
        # Past the SDK's `send_request`: that refuses a whole list for one field of one resource that is not valid, and
        # the protocol wants such a field to be a warning (desktop.txt, metadata of windows).
        session = self._client.session
        data: dict[str, Any] = {"method": method, **({} if params is None else {"params": dict(params)})}
        options: CallOptions = {}
        session._stamp(data, options)  # noqa: SLF001
        try:
            async with asyncio.timeout(timeout):  # the SDK's own would not bound handing the request over
                result = await session._dispatcher.send_raw_request(  # noqa: SLF001
                    method, data.get("params"), options
                )
        except MCPError as error:
            translated = self.translated(error)
            if isinstance(translated, RequestRefused) and translated.code not in SAID_ALOUD:
                # no Agent is told the text: it may be that of an exception
                what = (self.server, method, error.code, error.message)
                _log.info("MCP server %r failed at %s: MCP error %d: %.500r", *what)
            raise translated from None
        except TimeoutError:
            raise ServerTimedOut(self.server, f"did not answer within {timeout:.3g} s") from None
        if result.get("resultType") == "input_required":
            raise BadAnswer(self.server, "asks for input, which this Computer cannot give")
        return result

    def translated(self, error: MCPError) -> ServerError:
        """The SDK's error as one of ours; what says that the connection is gone ends it."""
        if (not_read := self.unread(error)) is not None:
            return not_read
        match error.code:
            case types.CONNECTION_CLOSED:
                self._ended.set()
                return ServerDied(self.server, "went away before it answered")
            case types.REQUEST_TIMEOUT:
                return ServerTimedOut(self.server, "did not answer in time")
            case types.INVALID_REQUEST if error.message == SESSION_TERMINATED:
                self._ended.set()
                return ServerDied(self.server, "was started again")
            case _:
                return RequestRefused(self.server, error.code, error.message, error.error.data)

    def unread(self, error: MCPError) -> ServerError | None:
        """The error of an answer that was too large or cannot be read; None: another error."""
        return unread(self.server, error, limit=self._max_message)
