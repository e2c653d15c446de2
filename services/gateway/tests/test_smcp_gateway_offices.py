"""Which notifications an office passes on to its members, also during a join and after an outage."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming
from smcp_bus.headers import EPOCH
from smcp_bus.registry_contract import Claim
from smcp_gateway.rooms.offices import Generations, Office
from smcp_gateway.sockets.packet import Frame
from smcp_gateway.sockets.session import MemberKey, Membership, Session
from smcp_proto.schemas import Capabilities, ResourceCapability

CLAIM = Claim(session="s", credential="c", process="p", incarnation="i", identity="x")


def heard(verb: str, payload: dict[str, Any], epoch: int | None = None) -> Incoming:
    headers = {} if epoch is None else {EPOCH: str(epoch)}
    return Incoming(subjects.notify("office", verb), orjson.dumps(payload), headers)


def entered(name: str, revision: int, role: str = "computer") -> Incoming:
    return heard("enter_office", {"office_id": "office", role: name}, 2 * revision + 1)


def left(name: str, revision: int, role: str = "computer") -> Incoming:
    return heard("leave_office", {"office_id": "office", role: name}, 2 * revision)


class Told:
    """An office whose notifications go into a list: the transport and the table of Computers of its gateway, too."""

    def __init__(self, agent_left: Callable[[str, str], None] = lambda office, agent: None) -> None:
        self.said: list[tuple[str, str, Any]] = []
        self.generations = Generations()
        self._agent_left = agent_left
        offices: Any = self
        self.transport = self.computers = self
        self.office = Office("office", offices)

    def send(self, session: Session, frame: Frame) -> None:
        event, payload = orjson.loads(frame.wire.removeprefix(b"42/smcp,"))
        about = payload.get("computer") or payload.get("agent") or payload.get("computerId")
        self.said.append((str(session.name), event.removeprefix("notify:"), about))

    def cancelled(self, *cancel: Any) -> tuple[Session, ...]:
        return ()

    def agent_left(self, office: str, agent: str, is_back: Callable[[], bool]) -> None:
        self._agent_left(office, agent)

    def member(self, name: str, revision: int, *, role: str = "computer", generation: int = 0) -> Session:
        session = Session(name, name, role=role, name=name)  # type: ignore[arg-type]
        self.office.arriving[session] = []
        self.admit(session, revision, generation)
        return session

    def admit(self, session: Session, revision: int, generation: int = 0) -> None:
        assert session.role is not None
        assert session.name is not None
        place = ("office", session.role, session.name)
        session.membership = Membership(place, revision, CLAIM, generation)
        self.office.admit(session, session.membership)

    def take(self) -> list[tuple[str, str, Any]]:
        said, self.said = self.said, []
        return said


async def test_members_get_enters_and_leaves_after_their_join_except_their_own() -> None:
    told = Told()
    told.member("a", 5)
    told.member("b", 7)
    for notice in (entered("old", 3), entered("a", 5), entered("x", 6), entered("b", 7), left("x", 8)):
        await told.office.hear(notice)
    assert told.take() == [
        ("a", "enter_office", "x"),
        ("a", "enter_office", "b"),
        ("a", "leave_office", "x"),
        ("b", "leave_office", "x"),
    ]


async def test_notifications_during_a_join_are_kept() -> None:
    told = Told()
    session = Session("n", "n", role="agent", name="n")
    told.office.arriving[session] = []
    for notice in (entered("before", 4), entered("after", 6), heard("update_config", {"computer": "after"})):
        await told.office.hear(notice)
    assert told.take() == []
    told.admit(session, 5)
    assert told.take() == [("n", "enter_office", "after"), ("n", "update_config", "after")]


@pytest.mark.parametrize(
    ("heard_meanwhile", "told_of"),
    [
        ([entered("x", 6), entered("x", 6)], ["enter_office"]),
        ([entered("x", 6), left("x", 7), left("x", 7)], ["enter_office", "leave_office"]),
        ([entered("x", 6), left("x", 7), entered("x", 6)], ["enter_office", "leave_office"]),
    ],
    ids=["enter twice", "leave twice", "enter again after the leave"],
)
async def test_a_repeated_announcement_during_a_join_is_passed_on_once(
    heard_meanwhile: list[Incoming], told_of: list[str]
) -> None:
    told = Told()
    session = Session("n", "n", role="agent", name="n")
    told.office.arriving[session] = []
    for notice in heard_meanwhile:
        await told.office.hear(notice)
    told.admit(session, 5)
    assert told.take() == [("n", event, "x") for event in told_of]


@pytest.mark.rule("answers.resources.outage")
async def test_members_from_before_an_outage_get_the_difference() -> None:
    told = Told()
    told.member("a", 1, role="agent")
    told.office.roster.learn([("agent", "a"), ("computer", "stays"), ("computer", "goes")])
    told.member("late", 20, generation=1)
    told.office.roster.ask()
    members: list[MemberKey] = [
        ("agent", "a"), ("computer", "stays"), ("computer", "comes"), ("computer", "late"),
    ]  # fmt: skip
    told.office.compare(members, 1, {"stays": Capabilities(resources=ResourceCapability(subscribe=True))})
    assert told.take() == [
        ("a", "leave_office", "goes"),
        ("a", "enter_office", "comes"),
        ("a", "enter_office", "late"),
        ("a", "update_config", "stays"),
        ("a", "update_tool_list", "stays"),
        ("a", "update_desktop", "stays"),
        ("a", "update_finder", "stays"),
        ("a", "resources/list_changed", "stays"),
        ("a", "update_capabilities", "stays"),
    ]
    for notice in (left("goes", 10), entered("comes", 11), entered("late", 20), entered("new", 21)):
        await told.office.hear(notice)
    assert told.take() == [("a", "enter_office", "new"), ("late", "enter_office", "new")]


async def test_an_agents_leave_that_only_a_comparison_shows_is_passed_on() -> None:
    gone: list[tuple[str, str]] = []
    told = Told(agent_left=lambda *left: gone.append(left))
    told.member("a", 1)
    told.office.roster.learn([("agent", "x"), ("computer", "a"), ("computer", "b")])
    await told.office.hear(left("b", 5))
    await told.office.hear(left("x", 6, role="agent"))
    await told.office.hear(entered("y", 7, role="agent"))
    assert gone == [("office", "x")]
    told.office.roster.ask()
    told.office.compare([("computer", "a")], 1, {})
    assert gone[1:] == [("office", "y")]


async def test_a_member_that_joined_after_the_outage_receives_what_the_list_had_first() -> None:
    told = Told()
    told.member("a", 1, role="agent")
    told.office.roster.learn([("agent", "a")])
    told.member("late", 20, generation=1)
    told.office.roster.ask()
    told.office.compare([("agent", "a"), ("computer", "late"), ("computer", "newer")], 1, {})
    told.take()
    await told.office.hear(entered("newer", 21))
    assert told.take() == [("late", "enter_office", "newer")]


@pytest.mark.rule("answers.rooms.alternate")
async def test_a_member_that_missed_a_leave_gets_no_enter_before_the_comparison() -> None:
    told = Told()
    told.member("a", 1, role="agent")
    told.office.roster.learn([("agent", "a"), ("computer", "x")])
    told.generations.current = 1  # the connection was down, and x left meanwhile
    told.member("late", 20, generation=1)
    for notice in (entered("late", 20), entered("x", 21)):
        await told.office.hear(notice)
    assert told.take() == [("a", "enter_office", "late"), ("late", "enter_office", "x")]
    told.office.compare([("agent", "a"), ("computer", "x"), ("computer", "late")], 1, {})
    events = ["update_config", "update_tool_list", "update_desktop", "update_finder", "resources/list_changed"]
    assert [event for _, event, about in told.take() if about == "x"] == events
    await told.office.hear(left("x", 22))
    assert told.take() == [("a", "leave_office", "x"), ("late", "leave_office", "x")]


async def test_a_member_that_missed_an_enter_gets_no_leave() -> None:
    told = Told()
    told.member("a", 1, role="agent")
    told.office.roster.learn([("agent", "a")])
    told.generations.current = 1
    await told.office.hear(left("x", 21))
    assert told.take() == []


async def test_before_the_first_list_a_leave_is_passed_on_even_after_an_outage() -> None:
    told = Told()
    told.member("a", 1, role="agent")
    told.generations.current = 1
    await told.office.hear(left("x", 21))
    assert told.take() == [("a", "leave_office", "x")]


@pytest.mark.parametrize(
    "broken",
    [
        Incoming(subjects.notify("office", "enter_office"), b"{"),
        Incoming(subjects.notify("office", "enter_office"), b"[]"),
        heard("enter_office", {"office_id": "office", "computer": "x"}),
        heard("enter_office", {"office_id": "office"}, 3),
        heard("no_such_thing", {}),
    ],
)
async def test_a_notification_that_cannot_be_read_is_dropped(broken: Incoming) -> None:
    told = Told()
    told.member("a", 1)
    await told.office.hear(broken)
    assert told.take() == []


async def test_a_member_claimed_anew_receives_an_earlier_enter_and_then_the_leave() -> None:
    told = Told()
    watcher = told.member("watcher", 5)
    told.office.roster.learn([("computer", "watcher")])
    told.generations.current = 1  # the connection was down for longer than a lease
    assert watcher.membership is not None
    watcher.membership.revision = 10  # asserted, and claimed anew
    await told.office.hear(entered("late", 9))  # somebody came in just before
    told.office.compare([("computer", "watcher"), ("computer", "late")], 1, {})
    await told.office.hear(left("late", 11))
    presence = [each for each in told.take() if each[1] in ("enter_office", "leave_office")]
    assert presence == [("watcher", "enter_office", "late"), ("watcher", "leave_office", "late")]
