"""What an operator does to a system that runs, or what happens to him: secrets are renewed, NATS loses its store."""

import asyncio
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from smcp_bus.nats.config import Credentials, load_credentials
from smcp_bus.owner import HELD_BEFORE_S
from smcp_standalone import nats_server
from smcp_testing.nats_peer import nats_peer
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import FlatError, member
from tests.e2e.actors.crowd import BACK_S, ENTER, LEAVE, Crowd, crowd, nobody_moved_but
from tests.e2e.actors.flights import in_flight, timed
from tests.e2e.actors.traffic import Traffic
from tests.e2e.rooms.bucket import members_bucket
from tests.e2e.scenarios.calls import text
from tests.e2e.scenarios.faults import past_the_lease
from tests.e2e.scenarios.metrics import scraped
from tests.e2e.worlds.layout import ALPHA, BETA
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.shared import SharedWorld
from tests.e2e.worlds.world import LAB, Part, World, lease_s

RENEWED: Final = ("registry-1", "gateway-1", "gateway-2", ALPHA.credential, BETA.credential)
"""Of each kind of process; the Agent that calls is on the first gateway, and the other registry is left alone."""
BIG: Final = 6_000_000


async def secrets_are_renewed_while_calls_go_on(world: World) -> None:
    """The former ones are not taken any more: connections break and come back with the new ones, and no call is
    lost."""
    out, pids, alpha = world.credentials.parent, _pids(world), world.computer(LAB, "alpha")
    former = {name: load_credentials(world.credentials / f"{name}.json") for name in RENEWED}
    async with crowd(world) as there, in_flight(there.agent, alpha, there.flights, seconds=4) as answer:
        broken = _broken(world)
        # From then on a Computer knows of what a gateway sends once more that it did not run.
        await asyncio.sleep(HELD_BEFORE_S)
        for name in RENEWED:
            (world.credentials / f"{name}.json").unlink()
        await _configure(world, lambda: nats_server.write(world.nats_model, out))
        for name in RENEWED:
            await eventually(partial(_broke_since, world, name, broken), timeout=BACK_S, message=name)
            await _part(world, name).ready(BACK_S)
        await _calls_are_answered(there, 5)
        assert text(await answer) == "slept 4.0"
    assert [call for stream in there.streams for call in stream.failed] == []
    nobody_moved_but(there)
    assert _pids(world) == pids, "nothing was restarted"
    for name, credentials in former.items():
        assert await _is_taken(world, load_credentials(world.credentials / f"{name}.json")), name
        assert not await _is_taken(world, credentials), name


async def nats_loses_its_store(world: World) -> None:
    """nats-server comes back with nothing of JetStream: everybody asserts its members again. Nobody leaves or enters,
    the rooms can be listed, and later events are announced once."""
    everybody = {("agent", "caller"), *(("computer", name) for name in ("alpha", "beta", "watcher"))}
    store, pids = Path(world.nats_model.jetstream.store_dir), _pids(world)
    async with crowd(world) as there:
        for _ in range(5):  # so that gateways have seen more than a new store would count for long
            async with member(world.url(1), "computer", LAB, "visitor"):
                pass
        await there.watcher.told(LEAVE, computer="visitor")
        _, last = await _revisions(world)
        gateway = world.gateway(0).part
        reconnects = (await scraped(gateway))["smcp_bus_reconnects_total", ()]
        await world.nats.kill()
        await eventually(partial(_is_connected, gateway, False))
        shutil.rmtree(world.credentials.parent / store)
        await world.nats.start()
        async with timed("the first call after the store was lost", BACK_S, world):
            await eventually(lambda: _is_answered(there), timeout=BACK_S)
        async with timed("the list of the room after the store was lost", BACK_S, world):
            await eventually(lambda: _lists(there, everybody), timeout=BACK_S)
        assert await _is_connected(gateway, True)
        assert (await scraped(gateway))["smcp_bus_reconnects_total", ()] == reconnects + 1
        first, _ = await _revisions(world)
        assert first > last, "gateways that saw the lost store do not take the new one's events for old"
        async with member(world.url(0), "computer", LAB, "newcomer"):
            await there.watcher.told(ENTER, timeout=BACK_S, computer="newcomer")
        await there.watcher.told(LEAVE, timeout=BACK_S, computer="newcomer")
        await past_the_lease(world)
        async with members_bucket(world) as bucket:
            assert set(await bucket.members(LAB)) == everybody
    assert there.noticed("newcomer") == ["enter", "leave"]
    nobody_moved_but(there)
    assert {name: pid for name, pid in _pids(world).items() if name != world.nats.name} == {
        name: pid for name, pid in pids.items() if name != world.nats.name
    }, "nothing else was restarted"


async def _is_connected(part: Part, expected: bool) -> bool:
    """Whether the metrics say so."""
    return (await scraped(part))["smcp_bus_connected", ()] == expected


def _pids(world: World) -> dict[str, int]:
    return {part.name: part.pid for part in world.parts}


def _part(world: World, name: str) -> Part:
    return next(part for part in world.parts if part.name == name)


def _broken(world: World) -> Counter[str]:
    """How often the connection of each part broke, by its log."""
    words = "the connection to nats-server broke"
    return Counter({part.name: part.log.read_text(encoding="utf-8").count(words) for part in world.parts})


def _broke_since(world: World, name: str, before: Counter[str]) -> bool:
    return _broken(world)[name] > before[name]


def _made(stream: Traffic, calls: int) -> bool:
    return len(stream.calls) >= calls


async def _configure(world: World, write: Callable[[], object]) -> None:
    """Write nats-server's configuration anew, and wait until it has read it."""

    def read() -> int:
        return world.nats.log.read_text(encoding="utf-8").count("Reloaded server configuration")

    before = read()
    write()
    os.kill(world.nats.pid, signal.SIGHUP)
    await eventually(lambda: read() > before, message="nats-server did not read its configuration")


async def _calls_are_answered(there: Crowd, more: int) -> None:
    """So many more of each stream, each answered."""
    for stream in there.streams:
        goal = len(stream.calls) + more + 1
        await eventually(partial(_made, stream, goal), timeout=BACK_S)
        assert stream.failed == [], stream.failed


async def _is_answered(there: Crowd) -> bool:
    try:
        return text(await there.agent.call("alpha", "echo", {"text": "again"}, timeout=5)) == "again"
    except FlatError:
        return False


async def _lists(there: Crowd, expected: set[tuple[str, str]]) -> bool:
    """Whether the Agent and the watcher, who are on different gateways, have both received the enters of these."""
    try:
        return await there.agent.room() == await there.watcher.room() == expected
    except FlatError:
        return False


async def _revisions(world: World) -> tuple[int, int]:
    """The first and the last of the registries' bucket."""
    async with nats_peer(world.nats_url, world.credentials / "registry-1.json") as reader:
        state = (await reader.client.jetstream().stream_info("KV_members")).state
        return state.first_seq, state.last_seq


async def _is_taken(world: World, credentials: Credentials) -> bool:
    """Whether nats-server lets somebody in who comes with them. By hand: nats-py leaves the socket of
    who is refused."""
    host, _, port = world.nats_url.removeprefix("nats://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        await reader.readline()  # INFO
        login = {"user": credentials.login, "pass": credentials.secret, "verbose": False}
        writer.write(b"CONNECT %b\r\nPING\r\n" % json.dumps(login).encode())
        answer = await asyncio.wait_for(reader.readline(), 30)
    finally:
        writer.close()
        await writer.wait_closed()
    assert answer == b"PONG\r\n" or b"Authorization Violation" in answer, answer
    return answer == b"PONG\r\n"


LEASE_S = lease_s(5)

pytestmark = [pytest.mark.keeps_processes, pytest.mark.alone]

SCENARIOS: list[Callable[[World], Awaitable[None]]] = [
    secrets_are_renewed_while_calls_go_on,
    nats_loses_its_store,
]


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorld]:
    world = SharedWorld(lambda: open_processes(tmp_path_factory.mktemp("operation"), lease_s=LEASE_S))
    yield world
    world.close()


@pytest.fixture
def shared(of_all: SharedWorld) -> SharedWorld:
    of_all.open()
    return of_all


@pytest.mark.timeout(180 + 10 * LEASE_S)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_operation(
    scenario: Callable[[World], Awaitable[None]], shared: SharedWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.hurt() as world:
        world.waits.clear()
        await scenario(world)
    with capsys.disabled():
        for wait in world.waits:
            print(f"\n  {wait}", end="")  # noqa: T201 -- a test allows more than is promised: it shows what it saw
