"""A bus that behaves badly on purpose: for tests of what lives on a bus.

It wraps the real one. Messages are lost, doubled and late, and what is late is overtaken by others. What happens to a
message follows from the seed, its kind, its subject and its number on that subject: one seed, one fate.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from smcp_bus.bus import (
    NO_HEADERS,
    ConnectionLost,
    ConnectionState,
    Headers,
    Incoming,
    NoticeHandler,
    Progress,
    Reply,
    RequestHandler,
    RequestTimedOut,
    Subscription,
)
from smcp_bus.nats.bus import Bus
from smcp_bus.nats.transfers import Send
from smcp_testing.fault_schedule import SOUND, Fates
from smcp_testing.fault_schedule import Rates as Rates

T = TypeVar("T")


class BadBus(Bus):
    """A `Bus` round a sound one, of which it has all but what it does to messages.

    Requests are lost and late on the asking side, doubled where they are served, and the second copy may be late;
    replies are lost and late where they arrive; notices where they are listened to; chunks (and questions for one)
    where they are sent. Leaving it as a context manager ends what it still holds back; the bus inside stays open.
    """

    def __init__(
        self,
        bus: Bus,
        seed: int,
        *,
        requests: Rates = SOUND,
        replies: Rates = SOUND,
        notices: Rates = SOUND,
        chunks: Rates = SOUND,
        max_delay: float = 0.05,
    ) -> None:
        """`max_delay` is in seconds: the most that something late is late."""
        vars(self).update(vars(bus))
        self.inner = bus
        # lost and late on the asking side, doubled where they are served
        self._requests = replace(requests, doubled=0.0)
        self._served = Rates(doubled=requests.doubled, late=requests.late if requests.doubled else 0.0)
        self._replies = replace(replies, doubled=0.0)
        self._notices = notices
        self._max_delay = max_delay
        self._fates = Fates(seed, max_delay)
        self._tasks: set[asyncio.Task[Any]] = set()
        if chunks != SOUND:
            interpose(bus, lambda send: self._bad_send(send, chunks))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    # -- what it is

    @property
    def met(self) -> Counter[str]:
        """How many messages met with what; see `Fates.met`. `"notice overtaken"`: one that came earlier came later."""
        return self._fates.met

    # -- what it does

    @property
    def problem(self) -> str | None:
        return self.inner.problem

    @property
    def node_left_at(self) -> float | None:  # type: ignore[override] # it changes
        return self.inner.node_left_at

    async def request(
        self,
        subject: str,
        body: bytes,
        *,
        timeout: float,
        headers: Headers = NO_HEADERS,
        progress: Progress | None = None,
    ) -> Reply:
        """As `Bus.request`, but the request or its answer may be lost, late, or there twice."""
        deadline = self._loop.time() + timeout
        there = self._fates.draw("request", subject, self._requests)
        back = self._fates.draw("reply", subject, self._replies)
        if there.lost:
            await self._silence(deadline)
        await self._pause(there.delay, deadline)
        if back.lost and progress is not None:
            progress = _NoAnswer(progress)
        left = deadline - self._loop.time()
        reply = await self.inner.request(subject, body, timeout=left, headers=headers, progress=progress)
        if back.lost:
            await self._silence(deadline)
        await self._pause(back.delay, deadline)
        return reply

    async def publish(self, subject: str, body: bytes, *, headers: Headers = NO_HEADERS) -> None:
        """As `Bus.publish`."""
        await self.inner.publish(subject, body, headers=headers)

    async def serve(self, subject: str, handler: RequestHandler, *, queue: str = "", limit: int = 1024) -> Subscription:
        """As `Bus.serve`, but some requests run twice."""

        async def twice_at_times(incoming: Incoming) -> Reply:
            fate = self._fates.draw("served", incoming.subject, self._served)
            if not fate.doubled:
                return await handler(incoming)
            runs = [self._spawn(_run(handler, incoming, delay)) for delay in (0.0, fate.delay)]
            try:
                done, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                for run in runs:
                    run.cancel()
                raise
            return done.pop().result()

        return _Drained(self, await self.inner.serve(subject, twice_at_times, queue=queue, limit=limit))

    async def listen(self, subject: str, handler: NoticeHandler) -> Subscription:
        """As `Bus.listen`, but notifications may be lost, late, out of order, or there twice."""
        notices = _Notices(handler, self.met)

        async def deliver(incoming: Incoming) -> None:
            fate = self._fates.draw("notice", incoming.subject, self._notices)
            if fate.lost:
                return
            for delay in (fate.delay, self._max_delay) if fate.doubled else (fate.delay,):
                if delay:
                    self._spawn(notices.deliver(incoming, delay))
                else:
                    await notices.deliver(incoming, 0)

        return _Drained(self, await self.inner.listen(subject, deliver))

    async def settle(self) -> None:
        """Wait until nothing is held back any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # of a doubled run: the other one's answer was taken

    def _bad_send(self, send: Send, rates: Rates) -> Send:
        def bad(subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
            fate = self._fates.draw("chunk", subject, rates)
            if fate.lost:
                return
            for _ in range(2 if fate.doubled else 1):
                if fate.delay:
                    self._loop.call_later(fate.delay, send, subject, reply, head, body)
                else:
                    send(subject, reply, head, body)

        return bad

    async def _pause(self, delay: float, deadline: float) -> None:
        if delay:
            await asyncio.sleep(min(delay, max(0.0, deadline - self._loop.time())))

    async def _silence(self, deadline: float) -> None:
        """Wait as for an answer that never comes. Always raises."""
        broke: asyncio.Future[None] = self._loop.create_future()

        def watcher(what: ConnectionState) -> None:
            if what is ConnectionState.DOWN and not broke.done():
                broke.set_result(None)

        stop = self.inner.watch(watcher)
        try:
            async with asyncio.timeout_at(deadline):
                await broke
        except TimeoutError as error:
            raise RequestTimedOut("no answer in time") from error
        finally:
            stop()
        raise ConnectionLost("the connection to nats-server broke")


def interpose(bus: Bus, wrap: Callable[[Send], Send]) -> None:
    """Let every chunk, and every question for one, go through `wrap(send)`."""
    bus.transfers._send = wrap(bus.transfers._send)


class _NoAnswer:
    """The progress of a request whose answer is lost."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def request_moved(self) -> None:
        self._progress.request_moved()

    def request_delivered(self) -> None:
        self._progress.request_delivered()

    def watched(self) -> None:
        """Nobody hears of it."""

    def noted(self, body: bytes) -> None:
        self._progress.noted(body)


class _Notices:
    """One listener's notices, still one after another whatever their delays."""

    def __init__(self, handler: NoticeHandler, met: Counter[str]) -> None:
        self._handler = handler
        self._met = met
        self._turn = asyncio.Lock()
        self._came = 0
        self._newest = 0

    async def deliver(self, incoming: Incoming, delay: float) -> None:
        self._came += 1
        number = self._came
        if delay:
            await asyncio.sleep(delay)
        async with self._turn:
            if number < self._newest:
                self._met["notice overtaken"] += 1
            self._newest = max(self._newest, number)
            await self._handler(incoming)


class _Drained:
    """A subscription of the bad bus."""

    def __init__(self, bus: BadBus, inner: Subscription) -> None:
        self._bus = bus
        self._inner = inner

    async def drain(self) -> None:
        await self._inner.drain()
        await self._bus.settle()


async def _run(handler: RequestHandler, incoming: Incoming, delay: float) -> Reply:
    if delay:
        await asyncio.sleep(delay)
    return await handler(incoming)
