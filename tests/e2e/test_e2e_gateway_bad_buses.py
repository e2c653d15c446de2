"""Calls, cancels and large bodies over buses that lose, double and delay: no double run, and one answer each.

Real registries, gateways and a Computer, all of whose buses are bad in the same way: a native one with a real MCP
server, or one on Socket.IO at the other gateway than the Agent.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from smcp_testing.bad_buses import FAULTS, BadBuses
from smcp_testing.computer_world import native_computer
from smcp_testing.fault_schedule import SOUND
from smcp_testing.gateway_world import MIB, NAMESPACE, Client, World, connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually

OFFICE = "office"
LEASE_S = 10.0
ALL_ENDED_S = 40.0
Kind = Literal["native", "socketio"]
FEW: dict[Kind, tuple[str, ...]] = {"native": ("lost", "doubled", "late"), "socketio": ("lost", "reordered")}
SEEDS = range(1, 1 + scaled(ci=1, soak=10))
CASES = [
    (kind, name, seed)
    for kind, few in FEW.items()
    for name in (FAULTS if scaled(ci=0, soak=1) else few)
    for seed in SEEDS
]
CALLS = scaled(ci=40, soak=200)
CANCELS = scaled(ci=12, soak=50)
LARGE = scaled(ci=4, soak=12)


@dataclass
class Scene:
    world: World
    anna: Client
    lines: Callable[[], list[str]]
    """What the Computer's tools wrote."""
    running: Callable[[], int]
    """Calls that its owner runs."""
    answers: dict[str, list[Any]] = field(default_factory=dict)
    """Per event that was sent, all that came back."""

    def ran(self, word: str = "") -> Counter[str]:
        """How often each mark was written, of the lines that begin with `word`."""
        return Counter(line.removeprefix(word)[:100] for line in self.lines() if line.startswith(word))

    async def send(self, what: str, event: str, payload: dict[str, Any]) -> None:
        """Send an event; python-socketio would call back for a second acknowledgement, too."""
        came = self.answers.setdefault(what, [])
        await self.anna.sio.emit(event, payload, namespace=NAMESPACE, callback=came.append)

    async def call(self, req_id: str, tool: str, params: dict[str, Any], *, timeout: int, what: str = "") -> None:
        payload = {"agent": "anna", "req_id": req_id, "computer": "box", "tool_name": tool}
        await self.send(what or req_id, "client:tool_call", payload | {"params": params, "timeout": timeout})

    async def all_answered(self) -> None:
        await eventually(lambda: all(self.answers.values()), timeout=ALL_ENDED_S)
        await eventually(lambda: self.running() == 0, timeout=ALL_ENDED_S)
        assert {what: came for what, came in self.answers.items() if len(came) != 1} == {}
        assert [len(gateway.calls) for gateway in self.world.gateways] == [0, 0]


@dataclass(frozen=True)
class Case:
    kind: Kind
    bad: BadBuses


@pytest.fixture(params=CASES, ids=lambda param: "-".join(map(str, param)))
def case(request: pytest.FixtureRequest) -> Case:
    kind, name, seed = request.param
    return Case(kind, BadBuses(FAULTS[name], seed))


@asynccontextmanager
async def native_box(world: World, log: Path) -> AsyncIterator[tuple[Callable[[], list[str]], Callable[[], int]]]:
    """What its tools wrote, and how many run."""
    async with native_computer(world, OFFICE, "box", {"toolbox": configs.stdio(log=log)}) as box:
        yield lambda: log.read_text().splitlines() if log.exists() else [], lambda: box.owner.running


@asynccontextmanager
async def socketio_box(world: World) -> AsyncIterator[tuple[Callable[[], list[str]], Callable[[], int]]]:
    """The same two tools, behind a socket."""
    lines: list[str] = []

    async def tool_call(request: dict[str, Any]) -> dict[str, Any]:
        mark = request["params"]["mark"]
        if request["tool_name"] == "append":
            lines.append(mark)
            return {"content": [{"type": "text", "text": mark}], "isError": False}
        lines.append(f"sleep {mark}")
        await box.gone.wait()  # one that does not hear a cancel: its gateway answers for it
        return {}

    async with connected(world.gateways[0].url, auth={"max_message": 16 * MIB}, take=17 * MIB) as box:
        box.sio.on("client:tool_call", tool_call, namespace=NAMESPACE)
        await joined(box, "computer", "box")
        yield lambda: lines, lambda: sum(gateway.computers.owner.running for gateway in world.gateways)


async def joined(client: Client, role: str, name: str) -> None:
    while (await client.join(role, name, OFFICE)) != [True, None]:
        pass  # 503: no registry answered


@asynccontextmanager
async def opened(nats_url: str, case: Case, log: Path) -> AsyncIterator[Scene]:
    async with (
        gateway_world(nats_url, gateways=2, registries=2, lease_s=LEASE_S, bad=case.bad) as world,
        native_box(world, log) if case.kind == "native" else socketio_box(world) as (lines, running),
        connected(world.gateways[1].url, auth={"max_message": 16 * MIB}, take=17 * MIB) as anna,
    ):
        await joined(anna, "agent", "anna")
        yield Scene(world, anna, lines, running)


def worked(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("isError") is False


def timed_out(answer: Any) -> bool:
    """Its time was over while it ran: it was asked for again and again, and came late."""
    return isinstance(answer, dict) and "a2c_timeout" in answer.get("meta", {})


def open_end(answer: Any) -> bool:
    """An error that leaves open whether the call ran, and says so; or one after which it did not."""
    return answer.get("code") in {408, 503} and isinstance(answer["details"]["may_have_run"], bool)


async def test_no_call_runs_twice_and_each_has_one_answer(nats_url: str, case: Case, tmp_path: Path) -> None:
    async with opened(nats_url, case, tmp_path / "log") as scene:
        marks = [f"m{number}" for number in range(CALLS)]
        for mark in marks:
            await scene.call(mark, "append", {"mark": mark}, timeout=10)
        for mark in marks[::4]:  # the same call again, by an Agent that is impatient
            await scene.call(mark, "append", {"mark": mark}, timeout=10, what=f"{mark} again")
        await scene.all_answered()
        ran = scene.ran()
        assert [mark for mark, times in ran.items() if times > 1] == []
        for what, [answer] in scene.answers.items():
            mark = what.split()[0]
            if worked(answer):
                assert answer["content"][0]["text"] == mark
                assert ran[mark] == 1, what
            elif not timed_out(answer):
                assert open_end(answer), (what, answer)
                assert ran[mark] == 0 or answer["details"]["may_have_run"] or f"{mark} again" in scene.answers
        assert sum(worked(answer) for [answer] in scene.answers.values()) >= CALLS / 2
        case.bad.check(notices=False)  # there are few beside cancels


async def test_a_cancelled_call_has_one_answer_and_every_cancel_has_one(
    nats_url: str, case: Case, tmp_path: Path
) -> None:
    async with opened(nats_url, case, tmp_path / "log") as scene:
        marks = [f"m{number}" for number in range(CANCELS)]
        for mark in marks:
            await scene.call(mark, "sleep", {"seconds": 60, "mark": mark}, timeout=6)
        await eventually(lambda: len(scene.ran("sleep ")) >= CANCELS * 0.6, timeout=ALL_ENDED_S)
        for mark in marks:
            await scene.send(f"cancel of {mark}", "server:tool_call_cancel", {"agent": "anna", "req_id": mark})
        await scene.all_answered()
        ran = scene.ran("sleep ")
        assert [mark for mark, times in ran.items() if times > 1] == []
        outcomes = Counter[str]()
        for what, [answer] in scene.answers.items():
            if what.startswith("cancel"):
                assert answer is None or answer["code"] == 503, answer
            elif "code" in answer:
                assert open_end(answer), (what, answer)
                outcomes["open"] += 1
            else:
                assert answer["isError"] is True
                assert set(answer["meta"]) <= {"a2c_cancelled", "a2c_timeout"}
                outcomes.update(answer["meta"])
        assert outcomes["a2c_cancelled"] >= CANCELS / 2, outcomes
        case.bad.check()


async def test_large_bodies_arrive_whole_or_not_at_all(nats_url: str, case: Case, tmp_path: Path) -> None:
    async with opened(nats_url, case, tmp_path / "log") as scene:
        texts = {f"m{number}": f"m{number:099}" + "x" * 2 * MIB for number in range(LARGE)}
        for mark, text in texts.items():
            await scene.call(mark, "append", {"mark": text}, timeout=30)
        await scene.all_answered()
        ran = scene.ran()
        assert [mark for mark, times in ran.items() if times > 1] == []
        for mark, [answer] in scene.answers.items():
            if worked(answer):
                assert answer["content"][0]["text"] == texts[mark]
                assert ran[texts[mark][:100]] == 1
            else:
                assert open_end(answer), (mark, answer)
        assert sum(worked(answer) for [answer] in scene.answers.values()) >= LARGE / 2
        chunks = any(what.startswith("chunk") for what in case.bad.met)
        assert chunks == (case.bad.faults.chunks != SOUND), case.bad.met
