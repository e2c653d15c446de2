"""How a process joins the bus, and what it may hold there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from smcp_bus.nats.credentials import Credentials

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    """How to reach nats-server, and what this process may hold."""

    url: str
    """`nats://host:port` or `ws://host:port/path`, several of one kind with commas; a comma in a name or password is
    `%2C`, as in every URL. With `tls://` nothing is said to a server that has no TLS, or another's certificate."""
    credentials: Credentials | None = None
    ca: Path | None = None
    """The certificates (PEM) that a server's own is checked against; None: those of the system."""
    max_payload: int = 32 * MIB
    """Bytes of the largest body, in and out."""
    name: str = "smcp"
    """Shown by nats-server's monitoring."""
    budget_bytes: int | None = None
    """Of chunked bodies on their way in, together, and as many of answers that are kept until they were pulled; None is
    four times `max_payload` for the first and sixteen times for the second."""
    process: str | None = None
    """The process id; None makes one."""
    connect_timeout: float = 10.0
    """Seconds in which nats-server has to answer first. One that refuses the credential has answered, and is asked
    again. A connection that stood once comes back by itself, for ever."""
    drain_timeout: float = 5.0
    """Seconds that closing waits for handlers that still run."""
    ping_interval: float = 5.0
    """Seconds between pings; a connection that leaves two of them unanswered is broken."""
    backlog_messages: int = 65536
    backlog_bytes: int = 64 * MIB
    """What may wait for its turn in one subscription; more is dropped and told as `Connection.SLOW`."""

    @property
    def websocket(self) -> bool:
        """Whether the servers are reached over WebSocket."""
        return urlsplit(self.url).scheme in ("ws", "wss")

    @property
    def hosts(self) -> str:
        """The hosts of the URL, without what may be secret in it."""
        parts = [urlsplit(one if "//" in one else f"nats://{one}") for one in self.url.split(",")]
        return ", ".join(part.netloc.rpartition("@")[2] for part in parts)


@dataclass(frozen=True, slots=True)
class BusStats:
    """What the bus holds now."""

    pending: int
    """Places in the inbox: requests that wait for an answer, bodies on their way in and out."""
    running: int
    """Handlers that run."""
    waiting: int
    """Messages that wait for a handler."""
    outgoing_bytes: int
    """Of bodies that are kept until they are pulled."""
    budget_used: int
    """Bytes given out to bodies on their way in."""
    budget_waiting: int
    """Bodies that wait for a share of the budget."""
    subscriptions: int
    """Subjects that are served or listened to."""
