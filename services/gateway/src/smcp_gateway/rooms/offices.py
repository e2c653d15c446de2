"""The offices whose members this gateway holds: passes their notifications from NATS to the sessions, and makes those
that a comparison after an outage finds. It subscribes to an office only while it holds a member, or one is joining.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import orjson

from smcp_bus import exact_json, subjects
from smcp_bus.bus import ConnectionState, Incoming, Subscription
from smcp_bus.callers import Caller, with_caller
from smcp_bus.headers import EPOCH, NOTIFICATION_ID, SUBJECT
from smcp_bus.nats.bus import Bus
from smcp_bus.outbox import missed_body
from smcp_bus.tracing import caused_by
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.computers.socketio_computer import CANCEL_EVENT
from smcp_gateway.sockets.packet import event_frame
from smcp_gateway.sockets.session import MemberKey, Membership, Session
from smcp_gateway.sockets.socketio_server import SocketIoServer
from smcp_proto import catalog
from smcp_proto.catalog import MEMBER
from smcp_proto.member_names import Role, check_name
from smcp_proto.schemas import AgentCallData, Capabilities, SessionInfo

REMEMBERED: Final = 4096
"""Epochs of members that left are kept up to this number; the oldest are forgotten."""
HEARD: Final = 64
"""Ids of an office's last notifications, by which a repeat is dropped: it comes within seconds of the first."""

UPDATES: Final = ("update_config", "update_tool_list", "update_desktop", "update_finder")
"""A Computer's notifications that say that something changed, without the change itself."""

_log: Final = logging.getLogger("smcp_gateway.rooms.offices")


@dataclass(frozen=True, slots=True)
class Notice:
    """One notification: its event, its JSON unchanged, and the member that it is about."""

    event: str
    body: bytes
    about: MemberKey | None
    epoch: int | None = None
    receivers: frozenset[Role] = MEMBER
    agent: str | None = None
    """The only Agent that gets it, where it names one."""
    subject: str | None = None
    """Of a cancel: whose it is (`Caller.subject`)."""

    def body_for(self, session: Session) -> bytes:
        """The body for this session. A Computer that asked for callers' subjects gets that of a cancel, too: by then
        another holder may have the Agent's name."""
        if self.subject is None or session.caller_key is None or session.role != "computer":
            return self.body
        caller = Caller(role="agent", office=None, subject=self.subject)
        return exact_json.written(with_caller(orjson.loads(self.body), caller, session.caller_key))

    @property
    def entered(self) -> bool:
        return self.event == "notify:enter_office"


class Generations:
    """Counts the times in which this gateway may have missed notifications, and wakes the repair."""

    def __init__(self) -> None:
        self.current = 0
        self._wanted = asyncio.Event()
        self._down = False

    def on_connection(self, connection: ConnectionState) -> None:
        if connection is ConnectionState.DOWN:
            self._down = True
        elif connection is not ConnectionState.UP or self._down:
            self._down = False
            self.current += 1
            self._wanted.set()

    @property
    def coming(self) -> int:
        """The generation after the present outage; without one the current generation."""
        return self.current + self._down

    def want(self) -> None:
        """Repair without an outage: the lease expired, or the registry removed a member."""
        self._wanted.set()

    async def wanted(self) -> int:
        await self._wanted.wait()
        self._wanted.clear()
        return self.current


def member_keys(sessions: Iterable[SessionInfo]) -> list[MemberKey]:
    return [(member.role, member.name) for member in sessions if member.role and member.name]


class Difference(NamedTuple):
    entered: list[MemberKey]
    left: list[MemberKey]
    stayed: list[MemberKey]


class Roster:
    """The members of an office, as its members on this gateway know them: decides which enters and leaves are new.

    Those carry epochs and may come twice, late, or not at all (in an outage). The roster drops what is not newer than
    the last one of its member, and what a comparison with a list has announced already.
    """

    def __init__(self) -> None:
        self._epochs: dict[MemberKey, int] = {}
        self.present: set[MemberKey] = set()
        self._changed: set[MemberKey] = set()
        self.known = False

    @property
    def revision(self) -> int:
        """The newest revision that was heard of. A list must have reached it."""
        return max(self._epochs.values(), default=0) // 2

    def event(self, member: MemberKey, *, entered: bool, epoch: int) -> bool | None:
        """An enter or leave came. None: it is not newer than the last one. True: tell only members that joined after
        the last outage; the others know it by the comparison, or missed what came between. False: tell all."""
        last = self._epochs.get(member)
        if last is not None and epoch <= last:
            return None
        heard_of = self.known or last is not None
        self._epochs[member] = epoch
        self._changed.add(member)
        changed = entered != (member in self.present)
        if entered:
            self.present.add(member)
        else:
            self.present.discard(member)
        self._forget()
        return heard_of and not changed

    def learn(self, members: Iterable[MemberKey]) -> None:
        if not self.known:
            self.present |= {member for member in members if member not in self._epochs}
            self.known = True

    def ask(self) -> None:
        """A list is requested: events from now on are newer than it, or in it."""
        self._changed.clear()

    def compare(self, members: Iterable[MemberKey]) -> Difference:
        """Compare with a list after an outage. Events since `ask` count more than the list."""
        now = (set(members) - self._changed) | (self.present & self._changed)
        before, self.present, self.known = self.present, now, True
        return Difference(sorted(now - before), sorted(before - now), sorted(now & before))

    def _forget(self) -> None:
        if len(self._epochs) <= len(self.present) + REMEMBERED:
            return
        self._changed &= self.present
        gone = sorted((epoch, member) for member, epoch in self._epochs.items() if member not in self.present)
        for _, member in gone[: len(gone) // 2]:
            del self._epochs[member]


class Office:
    def __init__(self, name: str, offices: "Offices") -> None:
        self.name = name
        self.roster = Roster()
        self.members: dict[Session, Membership] = {}
        self._heard: deque[str] = deque(maxlen=HEARD)
        self.compared = -1
        """Members of earlier generations have received the difference."""
        self.holders = 0
        self.subscription: Subscription | None = None
        self.lock = asyncio.Lock()
        """Held while the office is subscribed to, and while the first list is requested."""
        self.arriving: dict[Session, list[Notice]] = {}
        """The sessions that are joining, and the notifications since then."""
        self._transport, self._computers = offices.transport, offices.computers
        self._generations = offices.generations

    def admit(self, session: Session, membership: Membership) -> None:
        missed = self.arriving.pop(session, [])
        self.members[session] = membership
        for notice in missed:
            if notice.epoch is None or notice.epoch > membership.epoch:
                self._check([(session, membership)], notice)
                self._pass_on([session], notice)

    async def hear(self, incoming: Incoming) -> None:
        notification_id = incoming.headers.get(NOTIFICATION_ID)
        if notification_id is not None:
            if notification_id in self._heard:
                return  # a slow registry was asked again, and both have published it
            self._heard.append(notification_id)
        others: Collection[Session] = ()
        try:
            notice = read_notice(incoming)
            if notice.event == CANCEL_EVENT:
                subject = incoming.headers.get(SUBJECT, "")
                notice = replace(notice, subject=subject)
                with caused_by(incoming.headers):
                    cancel = AgentCallData.model_validate_json(notice.body)
                    others = self._computers.cancelled(self.name, cancel, subject)
        except ValueError as error:
            _log.warning("a notification that cannot be read was ignored: %s", type(error).__name__)
            return
        if notice.epoch is None or notice.about is None:
            self._keep(notice)
            self._pass_on([member for member in self.members if member not in others], notice)
            return
        if not notice.entered:
            self._agent_left(notice.about)
        only_after_outage = self.roster.event(notice.about, entered=notice.entered, epoch=notice.epoch)
        if only_after_outage is None:
            return  # a repeat; sessions that are joining have it, too
        self._keep(notice)
        self._check(self.members.items(), notice)
        # an enter's or leave's revision is half its epoch; what is newer than the member's own enter came after it
        revision = notice.epoch // 2
        generation = max(self.compared, self._generations.coming) if only_after_outage else -1
        self._pass_on(
            [
                session
                for session, membership in self.members.items()
                if revision > membership.joined_at and membership.generation >= generation
            ],
            notice,
        )

    def _agent_left(self, member: MemberKey) -> None:
        if member[0] == "agent":
            self._computers.agent_left(self.name, member[1], lambda: member in self.roster.present)

    def _keep(self, notice: Notice) -> None:
        for missed in self.arriving.values():
            missed.append(notice)

    def compare(
        self, members: Iterable[MemberKey], generation: int, capabilities: Mapping[str, Capabilities | None]
    ) -> None:
        """Compare with the registry's list after an outage, and tell members the difference: those of earlier
        generations, since later ones have missed nothing. `capabilities`: of the Computers, from the list."""
        difference = self.roster.compare(members)
        self.compared = generation
        missed_it = [session for session, membership in self.members.items() if membership.generation < generation]
        for member in difference.left:
            self._agent_left(member)
            self._pass_on(missed_it, presence(self.name, member, entered=False))
        for member in difference.entered:
            self._pass_on(missed_it, presence(self.name, member, entered=True))
        for role, name in difference.stayed:
            if role == "computer":
                for notice in updates(self.name, name, capabilities.get(name)):
                    self._pass_on(missed_it, notice)

    def missed(self, session: Session) -> None:
        """Tell an Agent that lost its seat for a while that its subscriptions ended and updates may be missing."""
        for role, name in sorted(self.roster.present):
            if role == "computer":
                self._pass_on([session], missed_of(self.name, name))

    def _check(self, members: Iterable[tuple[Session, Membership]], notice: Notice) -> None:
        """Repair when one of these members was removed by the registry although it is connected."""
        if notice.entered or notice.about is None or notice.epoch is None:
            return
        for session, membership in members:
            if session.is_(*notice.about) and notice.epoch > membership.epoch:
                membership.ended_by = max(membership.ended_by, notice.epoch)
                if not membership.ending:
                    self._generations.want()

    def _pass_on(self, sessions: Iterable[Session], notice: Notice) -> None:
        about = notice.about
        receivers = [
            session
            for session in sessions
            if session.role in notice.receivers
            and (about is None or not session.is_(*about))
            and (notice.agent is None or session.is_("agent", notice.agent))
        ]
        frame = event_frame(notice.event, notice.body)
        for session in receivers:
            own = event_frame(notice.event, notice.body_for(session)) if notice.subject is not None else frame
            self._transport.send(session, own)


@dataclass(eq=False, repr=False)
class Offices:
    bus: Bus
    transport: SocketIoServer
    computers: ComputerTable
    generations: Generations
    _offices: dict[str, Office] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._offices)

    def __iter__(self) -> Iterator[Office]:
        return iter(list(self._offices.values()))

    def get(self, name: str) -> Office | None:
        """The office, where this gateway holds a member of it or one is joining."""
        return self._offices.get(name)

    async def hold(self, name: str) -> Office:
        """The office, subscribed to: nats-server knows the subscription on return. Each `hold` needs one `release`,
        unless it raises BusError."""
        office = self._offices.get(name)
        if office is None:
            office = self._offices[name] = Office(name, self)
        office.holders += 1
        try:
            async with office.lock:
                if office.subscription is None:
                    office.subscription = await self.bus.listen(subjects.notify_all(name), office.hear)
        except BaseException:
            await self.release(office)
            raise
        return office

    async def release(self, office: Office) -> None:
        office.holders -= 1
        if office.holders:
            return
        if self._offices.get(office.name) is office:
            del self._offices[office.name]
        async with office.lock:
            subscription, office.subscription = office.subscription, None
        if subscription is not None:
            await subscription.drain()


def read_notice(incoming: Incoming) -> Notice:
    """Raises ValueError: not a notification of the catalog, or not an object."""
    verb = subjects.verb_of(incoming.subject)
    row = catalog.by_verb("notify", verb)
    if row is None:
        raise ValueError(f"{verb} is not a notification")
    payload: Any = orjson.loads(incoming.body)
    if not isinstance(payload, dict):
        raise ValueError(f"{verb} carries no object")  # noqa: TRY004 -- the content is wrong, not the code
    about = _about(payload)
    if verb not in {"enter_office", "leave_office"}:
        agent = payload.get("agent") if row.event == "notify:resources/updated" else None
        addressee = check_name(agent) if isinstance(agent, str) else None
        return Notice(row.event, incoming.body, about, receivers=row.receivers, agent=addressee)
    if about is None:
        raise ValueError(f"{verb} names no member")
    return Notice(row.event, incoming.body, about, int(incoming.headers.get(EPOCH, "")))


def presence(office: str, member: MemberKey, *, entered: bool) -> Notice:
    role, name = member
    event = "notify:enter_office" if entered else "notify:leave_office"
    return Notice(event, orjson.dumps({"office_id": office, role: name}), member)


def updates(office: str, computer: str, capabilities: Capabilities | None) -> list[Notice]:
    """One update of each kind for a Computer that may have changed in an outage. `capabilities`: its current ones."""
    body = orjson.dumps({"computer": computer})
    about: MemberKey = ("computer", computer)
    notices = [Notice(f"notify:{verb}", body, about) for verb in UPDATES]
    notices.append(missed_of(office, computer))
    if capabilities is not None:
        data = {"computer": computer, "capabilities": capabilities.model_dump(exclude_unset=True)}
        notices.append(Notice("notify:update_capabilities", exact_json.written(data), about))
    return notices


def missed_of(office: str, computer: str) -> Notice:
    """`resources/list_changed` with `a2c_missed`: updates may be missing, and subscriptions may have ended."""
    row = catalog.CATALOG["notify:resources/list_changed"]
    return Notice(row.event, missed_body(office, computer), ("computer", computer), receivers=row.receivers)


def _about(payload: dict[str, Any]) -> MemberKey | None:
    roles: tuple[tuple[str, Role], ...] = (("computer", "computer"), ("computerId", "computer"), ("agent", "agent"))
    for key, role in roles:
        name = payload.get(key)
        if isinstance(name, str):
            return role, check_name(name)
    return None
