"""The requests between processes and the registry that are not events of the protocol; `smcp_bus.subjects` has their
subjects. Joins, leaves and `confirm` carry the claim in the header `Smcp-Claim`.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator
from pydantic_core import from_json

from smcp_bus.exact_json import written
from smcp_proto.catalog import COMPUTER, Row
from smcp_proto.member_names import Name, Role
from smcp_proto.schemas import Capabilities
from smcp_proto.validation import refused

LONGEST_TEXT: Final = 4096
"""Characters of a text of an approval: the Computer has cut it to 256 (`smcp_bus.audit`), and escaped some."""


class _Contract(BaseModel):
    """Ignores what a newer process adds (docs/compatibility.md)."""

    model_config = ConfigDict(extra="ignore", frozen=True)


JsonText = Annotated[
    bytes,
    PlainValidator(
        lambda value: value if isinstance(value, bytes) else written(value), json_schema_input_type=dict[str, Any]
    ),
    PlainSerializer(from_json),
]
"""Any JSON, in memory as its text: parsed, what a hostile member says may take 20 times as much."""

PROCESS: Final = r"^[A-Za-z0-9_-]{1,64}$"
"""The name of a process; it is part of the process's subjects."""
_Id = Annotated[str, Field(min_length=1, max_length=512)]

LONGEST_CAPABILITIES: Final = 16 * 1024
"""Bytes: enough for some 200 MCP servers. A join parses them eight times."""


def capabilities_text(capabilities: Capabilities) -> bytes:
    """Raises Malformed."""
    text = written(capabilities.model_dump(exclude_unset=True))
    if len(text) > LONGEST_CAPABILITIES:
        raise refused("capabilities", f"are longer than {LONGEST_CAPABILITIES} bytes")
    return text


class Claim(_Contract):
    """Who wants a seat, beside what the event says.

    It is a header, so nothing in it is proven. A sender that lies about `credential`, `process` or `session` harms only
    seats on whose subjects it may publish: the named process says that it has no such session.
    """

    session: _Id
    """The connection behind the membership; opaque."""
    credential: Name
    process: str = Field(pattern=PROCESS)
    """The owner process: who answers `alive` for this session, and whose lease carries it."""
    incarnation: _Id
    """New at each claim that a session makes; `confirm` compares it."""
    identity: _Id
    """The token's subject; without authentication office, role and name. Decides who may take up a moving seat."""
    a2c_version: _Id | None = None
    """As the client said it at connect; shown by list_room."""
    announce: bool = True
    """False claims without telling (the first step of an office switch); a second claim with True tells."""
    capabilities: Annotated[JsonText, Field(max_length=LONGEST_CAPABILITIES)] | None = None


class Joined(_Contract):
    revision: int
    """Revision of the claimant's own record: enters and leaves up to here are older than its membership."""
    tenure: int | None = None
    unchanged: bool = False
    """It was in this office already; nothing is announced."""
    taken_up: bool = False
    """It has the seat of an owner from which it moved: for the office it was never away."""


def same_tenure(before: int | None, now: int | None) -> bool:
    """Whether nobody else had the seat between two answers of the registries: their `tenure` is equal, and not None."""
    return now is not None and before == now


class Left(_Contract):
    revision: int
    """Revision of the tombstone; of the record of a member that restarts."""


class Confirmed(_Contract):
    mine: bool
    tenure: int | None = None
    view: int = 0


class FindComputer(_Contract):
    computer: Name


class Found(_Contract):
    member: bool
    moving: bool = False


class Approval(_Contract):
    """What a registry takes of a Computer's record of an answer to the question whether a tool may run. Its office and
    its name are those of the subject."""

    outcome: str = Field(pattern=r"^[a-z_]{1,32}$")
    subject: str | None = Field(default=None, max_length=LONGEST_TEXT)
    by: str | None = Field(default=None, max_length=LONGEST_TEXT)
    name: str = Field(max_length=LONGEST_TEXT)
    """The Agent."""
    tool: str = Field(max_length=LONGEST_TEXT)
    req_id: str = Field(max_length=LONGEST_TEXT)
    trace_id: str | None = Field(default=None, pattern=r"^[0-9a-f]{32}$")
    args_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    writer: str = Field(default="", max_length=LONGEST_TEXT)
    seq: int = 0


class LeaseRenewal(_Contract):
    sockets: int = Field(default=0, ge=0)
    """For a gateway: the sockets it holds."""
    accepting: bool | None = None
    """For a gateway: whether it takes new sockets, which one that stops does not. None: it is not a gateway, and has
    no part in the fair share."""
    proof: str | None = Field(default=None, max_length=64)
    """For a gateway: what its requests carry (`Smcp-Proof`), since anybody may claim to be its process."""


class LeaseState(_Contract):
    renewed: bool
    """False: there was none (first time, or it ran out): assert the members again."""
    lease_s: float
    """How long the registries let a lease live, in seconds."""
    fair_share: int | None = None
    """For a gateway that takes new sockets: the sockets of all gateways by the gateways that take new ones, rounded up.
    None: not known."""


class Member(_Contract):
    office: Name
    role: Role
    name: Name
    claim: Claim
    moving: bool = False
    """Its gateway is about to disconnect it: its seat is kept for its identity, for `SMCP_MOVE_S`."""


class Assertion(_Contract):
    members: list[Member] = Field(max_length=500)


class AssertOutcome(StrEnum):
    UNCHANGED = "unchanged"
    """It stands as asserted, moving or not; nothing was announced."""
    CLAIMED = "claimed"
    """It had been lost and is a member again; an enter is announced."""
    REFUSED = "refused"
    """Another has the seat now; or one that was to move is not a member (any more)."""
    UNAVAILABLE = "unavailable"
    """No quorum, or the question to the other owner is open: ask again."""


class AssertedMember(_Contract):
    outcome: AssertOutcome
    revision: int = 0
    """Revision of its record; 0: it is not a member."""
    tenure: int | None = None
    why: str | None = None


class AssertionResult(_Contract):
    members: list[AssertedMember]
    """In the order of the assertion's members."""


class AliveQuestion(_Contract):
    """Asked of an owner process: is it there, and does it hold that session, claim or seat?"""

    session: str | None = None
    """None asks after the process alone."""
    incarnation: str | None = None
    """Asks about this claim of the session only. None: about its present claim."""
    office: Name | None = None
    """With `role` and `name` a seat: whether the session has it. None: whether it is a member of any office."""
    role: Role | None = None
    name: Name | None = None


class AliveAnswer(_Contract):
    session: bool = True
    """Whether that session is connected, and means the claim, or has the seat, that was asked about."""


class OfficesQuestion(_Contract):
    after: str = ""
    """The last office of the page before."""
    limit: int = Field(default=500, ge=1, le=500)


class OfficeSummary(_Contract):
    office: str
    agent: str | None
    since: str | None
    """When the Agent came (ISO 8601, UTC); None: not known, or there is none."""
    computers: int


class Offices(_Contract):
    offices: list[OfficeSummary]
    more: bool


class RoomQuestion(_Contract):
    office: Name
    after: tuple[Role, str] | None = None
    """Role and name of the last member of the page before."""
    limit: int | None = Field(default=None, ge=1, le=500)
    """None: all; an operator can read no answer that is larger than one message."""


class RoomMember(_Contract):
    role: Role
    name: str
    since: str | None
    by: str
    """The credential of its process: a gateway's, or its own host's."""
    a2c_version: str | None
    moving: bool


class Room(_Contract):
    office: str
    members: list[RoomMember]
    more: bool = False


class RecordsQuestion(_Contract):
    after: int = Field(default=0, ge=0)
    """The number of the last message of the page before."""
    subject: str | None = Field(default=None, pattern=r"^smcp\.v1\.[^.\s>]+\.audit\.[^.\s>]+$", max_length=2048)
    """Those on this subject (or pattern) only; messages with records of several offices or kinds are always there."""
    since: int = Field(default=0, ge=0, le=253_402_300_799)
    """On the first page: those that were stored since then (Unix time); an older registry gives all."""


class StoredRecord(_Contract):
    seq: int
    subject: str
    raw: Base64Bytes
    """The message as it was written, whatever it holds."""


class Records(_Contract):
    """A page of the audit trail's stream; an empty one: there are no more."""

    records: list[StoredRecord]
    first: int
    """The number of the oldest message that is kept."""
    last: int
    deleted: int
    """Messages after `first` that were deleted."""
    may_expire: bool = True
    """Whether messages before `first` can have expired; an older registry does not know."""


class Nothing(BaseModel):
    model_config = ConfigDict(extra="allow")


class PendingQuestion(BaseModel):
    """A gateway asks the owner of a Computer which of these requests will get no answer."""

    calls: list[tuple[str, str]] = Field(max_length=10_000)
    """(agent, req_id) each."""
    queries: list[str] = Field(default_factory=list, max_length=10_000)
    """The `req_id` of each request that is not a tool call."""


class PendingAnswer(BaseModel):
    """The requests that are over or not known; calls as (agent, req_id). Those that run are in no list."""

    unknown: list[tuple[str, str]]
    """Neither running nor ended here: they will not be answered."""
    ended: list[tuple[str, str]] = Field(default_factory=list)
    """Ended here, and answered: an answer that has not come by now was lost on the way."""
    lost_queries: list[str] = Field(default_factory=list)
    """Queries that are not running here: they never came, were answered just now, or their answer was lost."""


SOURCE: Final = "registry_contract"
"""The `source` of rows that no client sends."""


CONFIRM: Final = Row("server:confirm", Nothing, Confirmed, source=SOURCE)
FIND: Final = Row("server:find", FindComputer, Found, source=SOURCE)
APPROVAL: Final = Row("server:approval", Approval, Nothing, COMPUTER, source=SOURCE)
LEASE: Final = Row("hosts:lease", LeaseRenewal, LeaseState, source=SOURCE)
GATEWAY_LEASE: Final = Row("hosts:gateway_lease", LeaseRenewal, LeaseState, source=SOURCE)
ASSERT: Final = Row("hosts:assert", Assertion, AssertionResult, is_large=True, source=SOURCE)
ALIVE: Final = Row("hosts:alive", AliveQuestion, AliveAnswer, source=SOURCE)
PENDING: Final = Row("client:pending", PendingQuestion, PendingAnswer, is_large=True, source=SOURCE)
OFFICES: Final = Row("operators:offices", OfficesQuestion, Offices, source=SOURCE)
SHOW_ROOM: Final = Row("operators:room", RoomQuestion, Room, source=SOURCE)
RECORDS: Final = Row("operators:records", RecordsQuestion, Records, source=SOURCE)

_ROWS: Final = (CONFIRM, FIND, APPROVAL, LEASE, GATEWAY_LEASE, ASSERT, ALIVE, PENDING, OFFICES, SHOW_ROOM, RECORDS)
ROWS: Final = {(row.event.partition(":")[0], row.verb): row for row in _ROWS}
"""By prefix and verb."""
