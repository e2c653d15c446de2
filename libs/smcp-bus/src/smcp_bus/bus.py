"""What goes over the bus (`smcp_bus.nats.bus.Bus`), and its errors.

The bus promises (`tests/test_smcp_bus_promises.py`):

- `request` returns one answer or raises one `BusError`; it never hangs beyond its time-out, and leaves nothing
  behind afterwards. `NoResponder` and `NotConnected` mean that the request was not run. All else may have run it.
- A body of any size up to `max_body` arrives whole or not at all; above it `BodyTooLarge` is raised before
  anything is sent. Nothing is cut silently.
- A request is delivered to at most one member of a queue group, once, while the network is sound. The bus neither
  drops repeated messages nor sends lost ones again: a handler that must not run twice keeps a table, as `owner` does.
- `serve` runs each request in a task of its own, at most `limit` at a time per subscription (the rest waits in
  arrival order); an exception in a handler is answered with a 500 without its text, and logged.
- `listen` runs one notification after another, in the order of arrival.
- After the connection broke, the bus reconnects for ever by itself and subscribes again; what was awaiting an answer
  gets `ConnectionLost` at once. The callbacks of `watch` run synchronously, before any message of the new connection.
- Leaving a subscription (`drain`) takes no new messages, waits for the handlers that run, then lets go.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import orjson

from smcp_bus.headers import ERROR
from smcp_proto.errors import SmcpError


class BusError(Exception):
    """Base of all errors of the bus."""


class NoResponder(BusError):
    """Nobody served the subject. The request was not run."""


class NotConnected(BusError):
    """The bus is not connected now. The request was not sent, so it was not run."""


class ConnectionLost(BusError):
    """The connection broke while an answer was awaited. The request may have run."""


class RequestTimedOut(BusError):
    """No answer within the time-out. The request may have run."""


OWN_LAG_S = 0.25
"""If a request ends later than this after its time-out, this process was suspended, not the one that it asked."""


class BodyTooLarge(BusError):
    """A body above the limit of the bus. Nothing was sent.

    Attributes:
        size: bytes of the body.
        limit: bytes that the bus takes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are more than the bus takes ({limit})")
        self.size = size
        self.limit = limit


class TransferFailed(BusError):
    """The rest of a chunked body did not arrive. The request may have run."""


def describe(error: BaseException) -> str:
    """What an error says, for a log line or a message; its name where it says nothing (a time-out)."""
    return str(error) or type(error).__name__


def raise_if_cancelled() -> None:
    """Raise CancelledError where this task was cancelled and does not know.

    Until Python 3.12 `asyncio.wait_for`, which nats-py waits with, drops a cancellation that comes in the same round of
    the loop as the result. An endless task asks here after each such wait, or it could not be ended, and so does what
    starts a service, or the start would go on after a stop.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


Headers = Mapping[str, str]
NO_HEADERS: Headers = {}


@dataclass(slots=True)
class Reply:
    """JSON, or empty. Without headers it is a plain success."""

    body: bytes = b""
    headers: Headers = field(default_factory=dict)


def error_reply(error: SmcpError, headers: Headers = NO_HEADERS) -> Reply:
    return Reply(orjson.dumps(error.body().model_dump()), {ERROR: str(int(error.code)), **headers})


Note = Callable[[bytes], None]
"""Is given a note of a tool's progress, as JSON. It neither blocks nor raises; after the answer it does nothing."""


@dataclass(frozen=True, slots=True)
class Incoming:
    subject: str
    body: bytes
    headers: Headers = field(default_factory=dict)
    deadline: float | None = None
    """When the sender stops waiting (the receiver's loop time, seconds); None for a notification."""
    note: Note | None = None
    """Sends a note to who asked; None: it reads none."""


RequestHandler = Callable[[Incoming], Awaitable[Reply]]
NoticeHandler = Callable[[Incoming], Awaitable[None]]


class ConnectionState(Enum):
    UP = "up"
    DOWN = "down"
    SLOW = "slow"
    """Messages were dropped on the way in (slow consumer): notifications may be missing."""


Watcher = Callable[[ConnectionState], None]


class Progress(Protocol):
    """Receives the progress of a request. Its methods must neither block nor raise.

    A body that fits one message makes no progress calls: it arrives before any later request.
    """

    def request_moved(self) -> None:
        """The body goes in parts: one was sent, or was asked for."""

    def request_delivered(self) -> None:
        """The receiver has all parts."""

    def watched(self) -> None:
        """The first part of a chunked answer came. From here on the bus watches the responder; the caller need not
        probe it."""

    def noted(self, body: bytes) -> None:
        """A note of the tool's progress came. Anything may stand in it."""


class Subscription(Protocol):
    async def drain(self) -> None:
        """Take no new messages, wait until the handlers that run have ended, let go. Idempotent."""


AGAIN_S = 0.25
"""The pause of `once_connected` (seconds)."""


async def once_connected(subscribe: Callable[[], Awaitable[Subscription]]) -> Subscription:
    """What `subscribe` gives (a `serve` or `listen`). While nats-server is away it is tried again: so a process that
    starts waits for NATS. Raises BusError: nats-server does not permit it."""
    while True:
        try:
            return await subscribe()
        except (NotConnected, ConnectionLost, RequestTimedOut):
            await asyncio.sleep(AGAIN_S)
