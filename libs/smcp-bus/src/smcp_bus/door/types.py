"""What goes through the door: who calls, what is called, what comes back."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from smcp_bus.bus import Admit, Headers
from smcp_proto.catalog_row import Row
from smcp_proto.ids import Role


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the transport knows it: from a session or from a subject, never from the payload."""

    role: Role | None
    """None before a session has joined anything."""
    office: str | None = None
    name: str | None = None
    session: str = ""
    authenticated: bool = False
    """Whether a token says who it is."""


@dataclass(frozen=True, slots=True)
class RawJson:
    """A reply that is JSON already: passed on as it is."""

    body: bytes


@dataclass(slots=True)
class Call:
    """One request on its way through a process."""

    row: Row
    caller: Caller
    req_id: str
    deadline: float
    """In this process's loop time (seconds): when the caller stops waiting."""
    payload: Mapping[str, Any]
    """The request's JSON object as it came, unknown fields included."""
    raw: bytes | None = None
    """The same as bytes, where it came as bytes."""
    headers: Headers = field(default_factory=dict)
    subject: str = ""
    """Where it came in on the bus; empty where it came from a client."""
    admit: Admit | None = None
    """Decides when a large answer to it may come here; None: at once."""


Handler = Callable[[Any, Call], Awaitable[BaseModel | RawJson | None]]
"""A typed async function: the validated request and the call in, the reply out. It raises `SmcpError` for what a
peer may know; it holds no `sid`, no NATS message, no span."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the door gives back to a transport: JSON, and the code where it is a flat error."""

    body: bytes
    error: int | None = None
    headers: Headers = field(default_factory=dict)
