"""The progress of a tool call reaches the Agent that waits for it, and nobody else.

The Agent on one replica, the Computer on the same or on another one.
"""

import asyncio
from typing import Any

import orjson
import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import PROGRESS
from smcp_bus.tool_progress import EVERY_S
from smcp_gateway.sockets.session import PROGRESS_EVENTS
from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.socketio_pair import BOX, OFFICE, RESULT, Couple, call, couple, serve
from smcp_testing.waiting import eventually

NOTE, EVENT = "notify:tool_progress", "server:tool_progress"
READS = {"a2c_progress": True}
MINE = {"agent": "anna", "computer": BOX}


def said(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"agent": "anna", "req_id": f"r{number}", **fields}


class Since:
    """How many notes may have been sent or read since then."""

    def __init__(self) -> None:
        self._began = asyncio.get_running_loop().time()

    def notes_of_a_call(self) -> float:
        return 2 + (asyncio.get_running_loop().time() - self._began) / EVERY_S

    def notes_of_a_computer(self) -> float:
        return 2 + PROGRESS_EVENTS.per_s * (asyncio.get_running_loop().time() - self._began + PROGRESS_EVENTS.slack)


class Running:
    """A call of `anna` that the Computer runs until the test ends it."""

    def __init__(self, pair: Couple, number: int = 0, **fields: Any) -> None:
        self._ends = asyncio.Event()
        self.asked = serve(pair.box, "client:tool_call", self._tool)
        self._task = asyncio.create_task(pair.anna.call("client:tool_call", call(number) | fields))

    async def _tool(self, _: dict[str, Any]) -> Any:
        await self._ends.wait()
        return RESULT

    async def begun(self) -> dict[str, Any]:
        await eventually(lambda: self.asked)
        return self.asked[0]

    async def ended(self) -> None:
        self._ends.set()
        assert await self._task == RESULT


@pytest.mark.parametrize("replicas", [1, 2], ids=["one replica", "two replicas"])
async def test_progress_of_a_socketio_computer_reaches_the_calling_agent_alone(nats_url: str, replicas: int) -> None:
    async with (
        couple(nats_url, replicas) as pair,
        connected(pair.world.gateways[0].url) as mate,
        connected(pair.world.gateways[0].url) as foreign,
    ):
        await mate.join("computer", "mate", OFFICE)
        await foreign.join("agent", "anna", "elsewhere")
        running = Running(pair, **READS)
        assert (await running.begun())["a2c_progress_event"] == EVENT, (
            "the Computer is told by which event it may say it"
        )
        note = said(progress=1, total=4, message="a\x1b[1mb", computer=BOX, unknown=1)
        assert await pair.box.call(EVENT, note) is None
        await eventually(lambda: pair.anna.told(NOTE))
        await pair.box.sio.emit(EVENT, said(progress=2.5), namespace="/smcp")  # nobody waits for an acknowledgement
        await eventually(lambda: len(pair.anna.told(NOTE)) == 2)
        await running.ended()
        ids = MINE | {"req_id": "r0"}
        assert pair.anna.told(NOTE) == [
            ids | {"progress": 1, "total": 4, "message": "ab"},
            ids | {"progress": 2.5},
        ]
        assert mate.told(NOTE) == foreign.told(NOTE) == pair.box.told(NOTE) == []


async def test_an_agent_that_reads_no_progress_gets_none(nats_url: str) -> None:
    async with couple(nats_url) as pair:
        running = Running(pair)
        assert await running.begun() == call(0)
        assert await pair.box.call(EVENT, said(progress=1)) is None
        await running.ended()
        assert pair.anna.told(NOTE) == []


async def test_progress_counts_for_a_call_that_runs_at_its_own_computer(nats_url: str) -> None:
    async with couple(nats_url) as pair, connected(pair.owner.url) as other:
        await other.join("computer", "other", OFFICE)
        running = Running(pair, **READS)
        await running.begun()
        assert await other.call(EVENT, said(progress=1)) is None
        assert (await other.call(EVENT, said(progress=1, computer=BOX)))["code"] == 403
        assert (await pair.anna.call(EVENT, said(progress=1)))["code"] == 403
        assert await pair.box.call(EVENT, said(5, progress=1)) is None
        assert await pair.box.call(EVENT, said(progress=1) | {"agent": "eve"}) is None
        await running.ended()
        assert await pair.box.call(EVENT, said(progress=1)) is None
        assert pair.anna.told(NOTE) == []
        assert pair.owner.computers.owner.notes == {"sent": 0, "replaced": 0, "dropped": 4}


WRONG: list[tuple[str, Any]] = [
    ("progress", "1"), ("progress", True), ("progress", None), ("total", [4]), ("message", 5), ("message", "x" * 1025),
]  # fmt: skip


async def test_malformed_progress_is_refused_with_the_field(nats_url: str) -> None:
    async with couple(nats_url, 1) as pair:
        running = Running(pair, **READS)
        await running.begun()
        for field, value in WRONG:
            refused = await pair.box.call(EVENT, said(progress=1) | {field: value})
            assert (refused["code"], refused["details"]["field"]) == (400, field)
        refused = await pair.anna.call("client:tool_call", call(1) | {"a2c_progress": "yes"})
        assert (refused["code"], refused["details"]["field"]) == (400, "a2c_progress")
        await running.ended()
        assert pair.anna.told(NOTE) == []


async def test_hundreds_of_notes_at_once_are_few_for_the_agent(nats_url: str) -> None:
    async with couple(nats_url) as pair:
        running = Running(pair, **READS)
        await running.begun()
        since = Since()
        for step in range(300):
            await pair.box.sio.emit(EVENT, said(progress=step), namespace="/smcp")
        assert await pair.box.call(EVENT, said(progress=300)) is None
        await eventually(lambda: [note for note in pair.anna.told(NOTE) if note["progress"] == 300])
        most = since.notes_of_a_call()
        await running.ended()
        counts = pair.owner.computers.owner.notes
        assert counts["sent"] + counts["replaced"] == 301
        assert len(pair.anna.told(NOTE)) <= counts["sent"] <= most


async def test_progress_uses_up_no_quota_of_calls(nats_url: str) -> None:
    quotas = {"quota_calls_per_s": 0.01, "quota_burst_s": 500.0}  # five at once
    async with couple(nats_url, 1, settings=quotas) as pair:
        running = Running(pair, **READS)
        await running.begun()
        for step in range(50):
            assert await pair.box.call(EVENT, said(progress=step)) is None
        await running.ended()
        listing = {"agent": "anna", "req_id": "l", "office_id": OFFICE}
        refused = [(await pair.anna.call("server:list_room", listing)).get("code") for _ in range(5)]
        assert refused == [None] * 4 + [429], "of five events the call was the first"


async def test_malformed_progress_counts_as_any_other_event(nats_url: str) -> None:
    quotas = {"quota_calls_per_s": 0.01, "quota_burst_s": 500.0}  # five at once
    async with couple(nats_url, 1, settings=quotas) as pair:
        running = Running(pair, **READS)
        await running.begun()
        codes = [(await pair.box.call(EVENT, said(progress="x")))["code"] for _ in range(6)]
        assert codes == [400] * 4 + [429] * 2, "of five events the call was the first"
        assert await pair.box.call(EVENT, said(progress=1)) is None
        await eventually(lambda: pair.anna.told(NOTE))
        await running.ended()


async def test_excess_progress_is_dropped_and_not_refused(nats_url: str) -> None:
    async with couple(nats_url, 1) as pair:
        running = Running(pair, **READS, timeout=300)  # at a load of 13, profiled, 3,000 events took 47 s
        await running.begun()
        since = Since()
        acks = await asyncio.gather(*(pair.box.call(EVENT, said(progress=step)) for step in range(1_000)))
        most = since.notes_of_a_computer()
        await running.ended()
        assert acks == 1_000 * [None]
        assert 300 < sum(pair.owner.computers.owner.notes.values()) <= most


async def test_a_native_computer_that_sends_notes_without_end_cannot_flood_the_agent(nats_url: str) -> None:
    heads: list[str | None] = []

    async def tool(verb: str, incoming: Incoming) -> Reply:
        if verb != "tool_call":
            return Reply(b"{}")
        heads.append(incoming.headers.get(PROGRESS))
        if incoming.note is not None:
            for step in range(400):
                incoming.note(orjson.dumps({"progress": step, "agent": "eve", "computer": "mine", "req_id": "other"}))
            incoming.note(b"no JSON")
        return Reply(orjson.dumps(RESULT))

    async with (
        gateway_world(nats_url) as world,
        world.computer(OFFICE, BOX, tool),
        connected(world.url) as anna,
    ):
        await anna.join("agent", "anna", OFFICE)
        since = Since()
        assert await anna.call("client:tool_call", call(0) | READS) == RESULT, "it has its place among 512 messages"
        most = since.notes_of_a_call()
        assert await anna.call("client:tool_call", call(1)) == RESULT
        assert heads == ["1", None]
        assert anna.told(NOTE)[0] == MINE | {"req_id": "r0", "progress": 0}
        assert len(anna.told(NOTE)) <= most
        counts = world.gateways[0].computers.owner.notes
        assert counts["sent"] == len(anna.told(NOTE))
        assert sum(counts.values()) == 401
