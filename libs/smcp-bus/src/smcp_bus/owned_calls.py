"""Calls in the table of a Computer's owner (`smcp_bus.owner`): one that runs, and what is kept of one that ended."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.trace import Span, get_current_span

from smcp_bus.ownership import Seat
from smcp_bus.tool_progress import ProgressThrottle
from smcp_proto.errors import SmcpError

FREED: Final = 8
"""Where there is no more room, an eighth of it is freed: the search takes 40 ms for 100,000 calls."""
MAX_CANCELLERS: Final = 8
"""Subjects that are remembered of the cancels of one call that is not known, the last ones: a call has one subject, and
an Agent that calls for users could name any number (each cancel took longer then, 1.2 ms with 10,000 of them)."""

CallKey = tuple[str, str, str, str]
"""(office, computer, agent, req_id)"""


@dataclass(slots=True)
class EndedCall:
    """What is kept of a call that has ended."""

    digest: bytes
    subject: str
    at: float
    """Loop time."""
    body: bytes | None = field(repr=False)
    """None: its result is not kept, or it ended with an error."""
    error: SmcpError | None = None


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
    """Who called (`Caller.subject`)."""
    limit: float
    """Seconds after which it is settled as timed out."""
    asked_at: float
    """When it was asked for last (loop time)."""
    waiting: "list[asyncio.Future[bytes]]" = field(repr=False)
    """Who waits for its answer, each with its own future: who gives up leaves the others and the call alone."""
    settled: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list, repr=False)
    stop: Stop = field(default=lambda why: None, repr=False)
    span: Span = field(default_factory=get_current_span, repr=False)
    """Of the request that began it."""
    progress: ProgressThrottle | None = None
    """None: who began it reads none."""
