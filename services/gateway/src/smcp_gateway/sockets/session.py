"""The state of the connected clients, and what a client says about itself when it connects."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from smcp_auth.grants import Principal, Quota
from smcp_auth.quotas import CountedIn
from smcp_bus import exact_json
from smcp_bus.callers import Caller, SeatKey
from smcp_bus.limits import Rate
from smcp_bus.registry_contract import AliveQuestion, Claim
from smcp_gateway.sockets.engine import SendQueue
from smcp_gateway.sockets.packet import AUTH_BYTES, OVERSIZED
from smcp_proto.errors import RateLimited, SmcpError, TooLarge, Unavailable
from smcp_proto.member_names import Role
from smcp_proto.validation import malformed, refused

VERSION_PARAMETER: Final = "a2c_version"
DEFAULT_MAX_MESSAGE: Final = 4 * 1024 * 1024
"""The largest message (bytes) for a client that names no limit: aiohttp's. A larger one would close its socket."""

MAX_IN_FLIGHT: Final = 4096
"""Events of one client that may be unanswered at a time; above it 429."""
IN_FLIGHT: Final = 2
"""The bytes of all its requests in flight, in units of the largest request; above it 429, except for a single one."""
MAX_REPLIES: Final = 4
"""Bytes of large replies that wait here for one client, in units of the largest reply; above it 503."""
PROGRESS_EVENTS: Final = Rate(100, 5.0)
"""Progress events that one Computer may send beside the quotas (100 a second); the others are dropped."""

MemberKey = tuple[Role, str]
"""(role, name): a member of an office."""


@dataclass(slots=True)
class Membership:
    seat: SeatKey
    revision: int
    """Revision of the member's own record; a new claim writes it again."""
    claim: Claim
    """The claim to the seat that it holds, or that is being asserted."""
    generation: int
    """How often this gateway's connection had come back when it joined (see `repair`)."""
    tenure: int | None = None
    """Changes where the seat may have been another's (`registry_contract.same_tenure`)."""
    ending: bool = False
    """The gateway is releasing the seat itself: the leave that follows needs no repair."""
    joined_at: int = field(init=False)
    """The revision with which it joined. It gets the enters and leaves after that, also if its seat is claimed anew."""
    ended_by: int = 0
    """Epoch of its last leave that this gateway did not request: what the registry says of it has to be newer."""

    def __post_init__(self) -> None:
        self.joined_at = self.revision

    @property
    def office(self) -> str:
        return self.seat[0]

    @property
    def epoch(self) -> int:
        """Epoch of the member's own enter: newer events came after it."""
        return 2 * self.revision + 1


@dataclass(slots=True, eq=False)
class Session:
    """One connection of one client to the namespace.

    `role` and `name` are None until it has joined an office, and stay from then on.
    """

    id: str
    engine_id: str
    max_message: int = DEFAULT_MAX_MESSAGE
    max_values: int = exact_json.MAX_VALUES
    flat_errors: bool = False
    caller_key: str | None = None
    """Of a Computer that asked for callers' subjects: proves that a gateway sent them (`smcp_bus.callers`)."""
    a2c_version: str | None = None
    principal: Principal | None = None
    role: Role | None = None
    name: str | None = None
    membership: Membership | None = None
    joined_as: str = "ok"
    """How its last join went, for its record: `moved` with a seat that was kept for it, `unchanged`: it was there."""
    address: str = ""
    joining: tuple[SeatKey, str] | None = None
    """The seat that it is about to have, and the incarnation of its claim: the registry may know it as a member."""
    connected_at: float = 0.0
    closed: bool = False
    leaving: bool = False
    """The gateway is about to disconnect this client, and begins no new requests of it."""
    moving: bool = False
    """The registry keeps its seat for it: its membership does not end with this connection."""
    restarts: bool = False
    """The same, although the client says goodbye: its next process takes the seat."""
    send_queue: SendQueue = field(init=False, repr=False)
    """What waits to be written to it, while it is connected."""
    in_flight: int = 0
    in_flight_bytes: int = 0
    asks: dict[int, Callable[[bytes | None], None]] = field(default_factory=dict)
    """Pending acknowledgements by packet id: called with the text between the brackets of the ACK; None: no JSON."""
    ask_ids: Iterator[int] = field(default_factory=lambda: count(1))
    order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a `server:*` event is handled: they happen in the order in which they came."""
    max_reply_bytes: int = 0
    reply_bytes: int = 0
    was_refused: bool = False
    counted_in: CountedIn | None = field(default=None, repr=False)
    _caller: tuple[Membership | None, Caller] | None = field(default=None, init=False, repr=False)

    def caller(self) -> Caller:
        membership = self.membership
        known = self._caller
        if known is None or known[0] is not membership or known[1].role != self.role:
            office = membership.office if membership else None
            caller = Caller(self.role, office, self.name, self.id, address=self.address)
            if (principal := self.principal) is not None:
                caller = replace(caller, authenticated=True, subject=principal.identity, rights=principal.rights)
            self._caller = known = membership, caller
        return known[1]

    @property
    def tenants(self) -> tuple[str | None, str | None, Quota | None]:
        office = None if self.membership is None else self.membership.office
        if self.principal is None:
            return office, None, None
        return office, self.principal.identity, self.principal.grants.quota

    @property
    def busy(self) -> bool:
        return self.in_flight > 0 or len(self.asks) > 0

    @property
    def unsent_bytes(self) -> int:
        """Of replies and notifications that are here, or may come, and that its socket has not taken yet."""
        return self.reply_bytes + self.send_queue.unsent

    @property
    def seat(self) -> SeatKey | None:
        return None if self.membership is None else self.membership.seat

    def refusal(self, max_payload: int, *, begins: bool) -> SmcpError | None:
        """Why its new event, which is counted already, is not handled; `begins`: it is a join or a call."""
        if self.in_flight > MAX_IN_FLIGHT:
            return RateLimited("too many unanswered events on this connection", details={"limit": MAX_IN_FLIGHT})
        most = IN_FLIGHT * max_payload
        if self.in_flight_bytes > most and self.in_flight > 1:
            return RateLimited("unanswered events on this connection are too large together", details={"limit": most})
        if self.leaving and begins:
            # by `moving` our SDK knows that it is to ask again when it has come back
            details = {"may_have_run": False, "moving": True}
            return Unavailable("this connection is about to be closed; connect again", details=details)
        return None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Something of it is read, and waits until it may begin: that counts as unanswered."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def check_room(self, size: int) -> None:
        """Before `holding`. Raises Unavailable: too many large replies wait, since it does not read them."""
        if self.reply_bytes + size > self.max_reply_bytes:
            raise Unavailable("too many large replies were not read", details={"may_have_run": True})

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count a large reply that waits for it."""
        self.reply_bytes += size
        try:
            yield
        finally:
            self.reply_bytes -= size

    def is_(self, role: str, name: str) -> bool:
        return self.role == role and self.name == name


class Sessions:
    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._by_connection: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def add(self, session: Session) -> None:
        self._sessions[session.id] = self._by_connection[session.engine_id] = session

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def of_connection(self, engine_id: str) -> Session | None:
        return self._by_connection.get(engine_id)

    def remove(self, session_id: str) -> Session | None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            del self._by_connection[session.engine_id]
        return session

    def members(self) -> list[Session]:
        return [session for session in self._sessions.values() if session.membership is not None]

    def holds(self, question: AliveQuestion) -> bool:
        """Whether that session is connected and is, or is about to become, a member: by the claim, which it does not
        give up just now, or in the seat, if one is named. Without a session only this process is meant."""
        if question.session is None:
            return True
        session = self._sessions.get(question.session)
        if session is None:
            return False
        membership, (seat, incarnation) = session.membership, session.joining or (None, None)
        if question.incarnation is not None:
            claimed = None if membership is None or membership.ending else membership.claim.incarnation
            return question.incarnation in (incarnation, claimed)
        seats = {session.seat, seat} - {None}
        named = question.office, question.role, question.name
        return bool(seats) if question.office is None else named in seats


class ClientOptions(BaseModel):
    """What a client says of itself in CONNECT's `auth`; its token is for `smcp_gateway.auth`."""

    model_config = ConfigDict(strict=True, frozen=True)

    max_message: PositiveInt = DEFAULT_MAX_MESSAGE
    """Bytes of the largest message that it takes."""
    max_values: PositiveInt
    """JSON values of an answer."""
    flat_errors: bool = False
    caller_key: str | None = None
    a2c_version: str | None = None
    """Of the first request."""


def client_options(request: web.Request, auth: object, most: int) -> ClientOptions:
    """`max_values` is `most` by default, and not more. Raises TooLarge, Malformed."""
    if auth == OVERSIZED:
        raise TooLarge(f"auth: is longer than {AUTH_BYTES} bytes", details={"field": "auth", "limit": AUTH_BYTES})
    if not isinstance(auth, dict | None):
        raise refused("auth", "is not a JSON object")
    try:
        said = ClientOptions.model_validate({"max_values": most, **(auth or {}), "a2c_version": None})
    except ValidationError as error:
        wrong = malformed(error).details
        raise refused(f"auth.{wrong['field']}", wrong["reason"]) from None
    version = request.query.get(VERSION_PARAMETER)
    return said.model_copy(update={"max_values": min(most, said.max_values), "a2c_version": version})
