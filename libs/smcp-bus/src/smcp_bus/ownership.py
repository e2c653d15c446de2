"""Ownership of Computers: whether this process may run requests for them now, and their calls in the table of `Owner`.

After the connection broke or the process was suspended, nothing runs until the registry has confirmed the claim again:
the seat may be another's by then. A confirmation that was asked for before does not count.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from opentelemetry.trace import Span, get_current_span

from smcp_bus import registry_contract, subjects
from smcp_bus.bus import ConnectionState, Incoming, Reply, RequestHandler, error_reply
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.limits import Grant
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_contract import PendingAnswer
from smcp_bus.tool_progress import ProgressThrottle
from smcp_proto.errors import Unavailable

_log = logging.getLogger("smcp_bus.ownership")

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

MOVING: Final = "moving"
"""The value of `Smcp-Not-Run` where the Computer changes its owner just now."""
CLOSED_REPLY: Final = error_reply(Unavailable("this Computer's seat is not confirmed yet; retry"), {NOT_RUN: "1"})
"""Nothing was run, asking again is safe."""
MOVING_REPLY: Final = replace(CLOSED_REPLY, headers={**CLOSED_REPLY.headers, NOT_RUN: MOVING})
"""The same of a Computer that is on its way here, or leaves."""


def now() -> float:
    """Seconds of a clock that goes on while the host is suspended; on Linux that of the event loop does not."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


@dataclass(slots=True, eq=False)
class Seat:
    """A Computer that this process owns."""

    office: str
    computer: str
    cancel_grace_s: float = 0.0
    """How long the Computer may still answer a cancelled call; 0: it is in this process."""
    held_since: float | None = None
    """Since when it has its seat in the office without interruption (loop time)."""

    def confirmed(self, *, new_tenure: bool) -> None:
        """The registry has confirmed the seat. A new tenure: it may have been another's meanwhile."""
        if new_tenure or self.held_since is None:
            self.held_since = asyncio.get_running_loop().time()


FREED: Final = 8
"""Where there is no more room, an eighth of it is freed: the search takes 40 ms for 100,000 calls."""
MAX_REQUESTS: Final = 8192
"""Requests that a process runs for Computers at a time. High, as calls may take an hour."""
MAX_CANCELLERS: Final = 8
"""Subjects kept of the cancels of one unknown call: an Agent that calls for users could name any number."""

CallKey = tuple[str, str, str, str]
"""(office, computer, agent, req_id)"""


@dataclass(slots=True)
class EndedCall:
    digest: bytes
    subject: str
    at: float
    body: bytes | None = field(repr=False)
    """Its result, or its error; None: not kept."""
    failed: bool = False
    runs_again: bool = False
    """That error says that nothing was run, so a repeat of the call runs."""


Stop = Callable[[str], None]
"""Stops a call that was settled before its answer came. The argument is the reason: `timeout`, `cancelled`, `abandoned`
(its Agent has left) or `aborted`."""


@dataclass(slots=True, eq=False)
class RunningCall:
    """Made by `Owner.call`; its runner gives the answer to `Owner.settle`."""

    seat: Seat
    key: CallKey
    tool: str
    digest: bytes = field(repr=False)
    subject: str
    limit: float
    """Seconds after which it is settled as timed out."""
    asked_at: float
    waiting: "list[asyncio.Future[bytes]]" = field(repr=False)
    """One future for each caller: one that gives up ends neither the others nor the call."""
    grant: Grant = field(repr=False)
    settled: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list, repr=False)
    stop: Stop = field(default=lambda why: None, repr=False)
    span: Span = field(default_factory=get_current_span, repr=False)
    progress: ProgressThrottle | None = None
    """None: who began it reads none."""


class Ownership:
    """Whether this process may run what arrives for its Computers. Closed at first; `run()` must be running meanwhile.

    Args:
        lease_s: after half of it without a beat of the loop the process is taken to have been suspended.
    """

    def __init__(self, bus: Bus, *, lease_s: float) -> None:
        self._bus = bus
        self._longest_silence = lease_s / 2
        self._open = False
        self.moving = False
        """True: what is refused from now on waits for another process, which takes over the members of this one."""
        self._generation = 0
        self._closed = asyncio.Event()
        self._closed.set()
        self._beat = now()

    @property
    def is_open(self) -> bool:
        self._look()
        return self._open

    @property
    def generation(self) -> int:
        """Changes at each closing: taken before a claim is confirmed, given to `open` afterwards."""
        self._look()  # a suspension from before the question says nothing against its answer
        return self._generation

    def open(self, generation: int) -> bool:
        """Open it, unless it was closed since `generation` was taken. Returns whether it is open."""
        self._look()
        if generation != self._generation or not self._bus.connected:
            return False
        self._beat = now()
        self._open = True
        self._closed.clear()
        return True

    def close(self, why: str) -> None:
        """Close it now; what runs goes on, nothing new begins."""
        if self._open:
            _log.info("takes no new calls: %s", why)
        self._open = False
        self._generation += 1
        self._closed.set()

    def refusal(self) -> Reply | None:
        """The reply for a request that may not run now; None: it may."""
        if self.is_open:
            return None
        return MOVING_REPLY if self.moving else CLOSED_REPLY

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def run(self) -> None:
        """Watch the connection and the clock until cancelled; it is closed afterwards."""
        unwatch = self._bus.watch(self._on_connection)
        try:
            while True:
                self._look()
                self._beat = now()
                await asyncio.sleep(self._longest_silence / 4)
        finally:
            unwatch()
            self.close("stopped")

    def _look(self) -> None:
        """A suspension since the last beat is a closing, also where it is closed: the generation changes."""
        at = now()
        if at - self._beat > self._longest_silence:
            self._beat = at  # once for each
            self.close("the process was suspended")

    def _on_connection(self, connection: ConnectionState) -> None:
        if connection is ConnectionState.DOWN:
            self.close("the connection to NATS broke")


def owned(handler: RequestHandler, refusal: Callable[[], Reply | None]) -> RequestHandler:
    """`handler`, but for the time in which `refusal` gives a reply: then that is the answer, and nothing runs.

    `pending` is still answered where all calls that it asks for are known; others may be another owner's.
    """

    async def guarded(incoming: Incoming) -> Reply:
        refused = refusal()
        if refused is None:
            return await handler(incoming)
        if subjects.verb_of(incoming.subject) == registry_contract.PENDING.verb:
            reply = await handler(incoming)
            if ERROR not in reply.headers:
                answer = PendingAnswer.model_validate_json(reply.body)
                if not answer.unknown:
                    known = answer.model_copy(update={"lost_queries": []})
                    return replace(reply, body=known.model_dump_json().encode())
        return refused

    return guarded
