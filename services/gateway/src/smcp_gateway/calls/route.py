"""The way to a Computer: in this process where this replica itself owns it, else over the bus.

Local or remote is decided here alone. Who asks does not know it, and what answers is the same handler behind the same
rules (`OwnedComputer.handle`). A request that is handed over keeps what the bus promises: the handler runs in a task of
its own, which outlives who asked; the time-out ends the asking only; a large answer waits until it is admitted, and
what waits is bounded.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from smcp_bus.bus import Admit, Bus, Headers, Incoming, Progress, Reply, RequestHandler
from smcp_bus.errors import BodyTooLarge, RequestTimedOut
from smcp_bus.nats.chunks import MAX_CHUNK
from smcp_bus.nats.serving import error_reply
from smcp_proto.errors import ErrorCode

MAX_REQUESTS: Final = 8192
"""That run here at a time; above it 503. They outlive who asked, so connections that break do not bound them."""
KEPT: Final = 16
"""Largest answers that wait until they are admitted, together; above it 503. As many as a bus keeps."""

_log: Final = logging.getLogger("smcp_gateway.calls.route")

Serving = Callable[[str], RequestHandler | None]
"""What answers on a subject in this process now; None: nothing here may."""


class CallRoute:
    """A `relay.Way`. `close` it before the bus.

    Args:
        bus: the way to all that is not served here.
    """

    def __init__(self, bus: Bus, serving: Serving) -> None:
        self._bus = bus
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0

    def __len__(self) -> int:
        """How many requests run here."""
        return len(self._tasks)

    @property
    def waiting_bytes(self) -> int:
        """Of answers that are not admitted yet."""
        return self._waiting_bytes

    async def request(
        self,
        subject: str,
        body: bytes,
        *,
        timeout: float,
        headers: Headers,
        progress: Progress,
        admit: Admit | None,
        payload: Mapping[str, Any] | None,
    ) -> Reply:
        """See `Bus.request`. An owner in this process is not asked whether it lives, and no connection can break."""
        handler = self._serving(subject)
        if handler is None:
            return await self._bus.request(
                subject, body, timeout=timeout, headers=headers, progress=progress, admit=admit
            )
        if len(body) > self._bus.max_body:
            raise BodyTooLarge(len(body), self._bus.max_body)
        if len(self._tasks) >= MAX_REQUESTS:
            return error_reply(ErrorCode.UNAVAILABLE, "too many calls run here; ask again", may_have_run=False)
        progress.watched()
        deadline = self._loop.time() + timeout
        answer: asyncio.Future[Reply | None] = self._loop.create_future()
        incoming = Incoming(subject, body, headers, deadline, payload)
        task = self._loop.create_task(self._run(handler, incoming, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        timer = self._loop.call_at(deadline, _settle, answer, None)
        try:
            reply = _in_time(await answer)
        finally:
            timer.cancel()
        if admit is not None and len(reply.body) > MAX_CHUNK:
            return await self._admitted(reply, admit, deadline)
        return reply

    async def close(self) -> None:
        """End what runs here."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def _run(self, handler: RequestHandler, incoming: Incoming, answer: "asyncio.Future[Reply | None]") -> None:
        try:
            reply = await handler(incoming)
        except asyncio.CancelledError:
            # Only `close` cancels. Who waits should not wait until its time is over.
            _settle(answer, error_reply(ErrorCode.UNAVAILABLE, "shutting down"))
            raise
        except Exception:  # noqa: BLE001 -- whatever a handler raises, its text stays here
            _log.exception("the handler of %s failed", incoming.subject)
            reply = error_reply(ErrorCode.INTERNAL, "internal error")
        _settle(answer, reply)

    async def _admitted(self, reply: Reply, admit: Admit, deadline: float) -> Reply:
        """A large answer waits where it is until its receiver has room for it, as one in parts waits with its owner."""
        size = len(reply.body)
        admitted: asyncio.Future[Reply | None] = self._loop.create_future()
        admit(size, lambda: _settle(admitted, reply))
        if admitted.done():
            return reply
        if self._waiting_bytes + size > KEPT * self._bus.max_body:
            _log.warning("a large answer was not taken: %d bytes of others wait", self._waiting_bytes)
            full = "too many large answers are on their way; ask again"
            return error_reply(ErrorCode.UNAVAILABLE, full, may_have_run=True)
        self._waiting_bytes += size
        timer = self._loop.call_at(deadline, _settle, admitted, None)
        try:
            return _in_time(await admitted)
        finally:
            timer.cancel()
            self._waiting_bytes -= size


def _settle(answer: "asyncio.Future[Reply | None]", reply: Reply | None) -> None:
    """None: its time is over. The first counts."""
    if not answer.done():
        answer.set_result(reply)


def _in_time(reply: Reply | None) -> Reply:
    if reply is None:
        raise RequestTimedOut("no answer in time")
    return reply
