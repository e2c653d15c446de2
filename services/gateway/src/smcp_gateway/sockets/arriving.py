"""A WebSocket of aiohttp whose messages may be taken where they arrive, without waking a task for each.

aiohttp's inner names that this relies on: `_post_start`, which makes the queue and the parser, and what it sets.
"""

from collections.abc import Callable
from typing import Any, Final

from aiohttp import WSMsgType, web
from aiohttp._websocket.reader import WebSocketDataQueue
from aiohttp.http import WebSocketReader

QUEUE_BYTES: Final = 64 * 1024
"""From twice as much on nothing is read from the client until its messages are taken from the queue."""

Take = Callable[[bytes], bool]
"""Given a text message; False: it is to be received in its turn. Must not block."""


class _Queue(WebSocketDataQueue):
    """aiohttp's queue of messages, but for those that are taken as they arrive."""

    take: Take | None = None

    def offer(self, take: Take | None) -> None:
        """See `ArrivingWebSocket.take_with`."""
        self.take = None if self._buffer else take

    def feed_data(self, data: Any, size: int) -> None:
        take = self.take
        if take is None or data.type is not WSMsgType.TEXT or not take(data.data):
            # It comes first. aiohttp goes on with what it held back while it gives out this one, and its queue is empty
            # by then.
            self.take = None
            super().feed_data(data, size)


class ArrivingWebSocket(web.WebSocketResponse):
    """As aiohttp's, for text messages that are not decoded."""

    def __init__(self, **options: Any) -> None:
        super().__init__(decode_text=False, **options)

    def take_with(self, take: Take | None) -> None:
        """Offer text messages to `take` before they are put into the queue: as long as that is empty."""
        assert isinstance(self._reader, _Queue)
        self._reader.offer(take)

    def _post_start(self, request: web.BaseRequest, protocol: str | None, writer: Any) -> None:
        self._ws_protocol = protocol
        self._writer = writer
        assert self._loop is not None
        self._reader = _Queue(request.protocol, QUEUE_BYTES, loop=self._loop)
        self._parser = WebSocketReader(
            self._reader, self._max_msg_size, compress=bool(self._compress), decode_text=False
        )
        request.protocol.set_parser(self._parser)
        request.protocol.keep_alive(False)
