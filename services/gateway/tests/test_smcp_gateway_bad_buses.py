"""Calls, cancels and large bodies over buses that lose, double and delay: no double run, and one answer each.

Real registries, gateways and a native Computer with a real MCP server; all their buses are bad in the same way.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.app import Computer
from smcp_testing.bad_buses import FAULTS, BadBuses
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import MIB, NAMESPACE, Client, World, connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually

OFFICE = "office"
LEASE_S = 10.0
ALL_ENDED_S = 40.0
KINDS = FAULTS if scaled(ci=0, soak=1) else ("lost", "doubled", "late")
SEEDS = range(1, 1 + scaled(ci=1, soak=10))
CALLS = scaled(ci=40, soak=200)
CANCELS = scaled(ci=12, soak=50)
LARGE = scaled(ci=4, soak=30)


@dataclass
class Scene:
    world: World
    anna: Client
    box: Computer
    log: Path
    answers: dict[str, list[Any]] = field(default_factory=dict)
    """Per event that was sent, all that came back."""

    def ran(self, word: str = "") -> Counter[str]:
        """How often each mark was written, of the lines that begin with `word`."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(line.removeprefix(word)[:100] for line in lines if line.startswith(word))

    async def send(self, what: str, event: str, payload: dict[str, Any]) -> None:
        """Send an event; python-socketio would call back for a second acknowledgement, too."""
        came = self.answers.setdefault(what, [])
        await self.anna.sio.emit(event, payload, namespace=NAMESPACE, callback=came.append)

    async def call(self, req_id: str, tool: str, params: dict[str, Any], *, timeout: int, what: str = "") -> None:
        payload = {"agent": "anna", "req_id": req_id, "computer": "box", "tool_name": tool}
        await self.send(what or req_id, "client:tool_call", payload | {"params": params, "timeout": timeout})

    async def all_answered(self) -> None:
        await eventually(lambda: all(self.answers.values()), timeout=ALL_ENDED_S)
        await eventually(lambda: self.box.in_flight.running == 0, timeout=ALL_ENDED_S)
        assert {what: came for what, came in self.answers.items() if len(came) != 1} == {}
        assert [len(gateway.calls) for gateway in self.world.gateways] == [0, 0]


@pytest.fixture(params=[(name, seed) for name in KINDS for seed in SEEDS], ids=lambda param: f"{param[0]}-{param[1]}")
def bad(request: pytest.FixtureRequest) -> BadBuses:
    name, seed = request.param
    return BadBuses(FAULTS[name], seed)


@asynccontextmanager
async def opened(nats_url: str, bad: BadBuses, log: Path) -> AsyncIterator[Scene]:
    async with (
        gateway_world(nats_url, gateways=2, registries=2, lease_s=LEASE_S, bad=bad) as world,
        native_computer(world, OFFICE, "box", {"toolbox": configs.stdio(log=log)}) as box,
        connected(world.gateways[1].url, auth={"max_message": 16 * MIB}, take=17 * MIB) as anna,
    ):
        while (await anna.join("agent", "anna", OFFICE)) != [True, None]:
            pass  # 503: no registry answered
        yield Scene(world, anna, box, log)


def worked(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("isError") is False


def open_end(answer: Any) -> bool:
    """An error that leaves open whether the call ran, and says so; or one after which it did not."""
    return answer.get("code") in {408, 503} and isinstance(answer["details"]["may_have_run"], bool)


async def test_no_call_runs_twice_and_each_has_one_answer(nats_url: str, bad: BadBuses, tmp_path: Path) -> None:
    async with opened(nats_url, bad, tmp_path / "log") as scene:
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
            else:
                assert open_end(answer), (what, answer)
                assert ran[mark] == 0 or answer["details"]["may_have_run"] or f"{mark} again" in scene.answers
        assert sum(worked(answer) for [answer] in scene.answers.values()) >= CALLS / 2
        bad.check()


async def test_a_cancelled_call_has_one_answer_and_every_cancel_has_one(
    nats_url: str, bad: BadBuses, tmp_path: Path
) -> None:
    async with opened(nats_url, bad, tmp_path / "log") as scene:
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
        bad.check()


async def test_large_bodies_arrive_whole_or_not_at_all(nats_url: str, bad: BadBuses, tmp_path: Path) -> None:
    async with opened(nats_url, bad, tmp_path / "log") as scene:
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
        assert any(what.startswith("chunk") for what in bad.met), bad.met
