"""JetStream has no room: whatever the registries would write is refused, or is not answered."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from nats.js import JetStreamContext, api
from nats.js.errors import APIError

from smcp_testing.nats_peer import nats_peer
from smcp_testing.waiting import Stopwatch, eventually
from tests.e2e.actors.bare import BareMember, Refused, member
from tests.e2e.actors.crowd import ENTER
from tests.e2e.outages.nodes import QUORUM_S, RETRY_S
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.outages.scene import CALLER, NEIGHBOUR, Scene, codes, flown, scene
from tests.e2e.restarts.checker import Call
from tests.e2e.worlds.world import World

FULL_S: Final = 20.0
"""In which what is free in pages that JetStream has already is used up."""
REFUSED_S: Final = 4.0
"""In which a join is refused: a registry waits for the store for 2 s."""
NO_ROOM: Final = 10023
"""The code of JetStream's error where it may not keep more."""
FILLER: Final = "KV_filler"


async def the_disk_is_full(world: World, directory: Path) -> None:
    """By a file that is not JetStream's. A stream that met it takes nothing until nats-server is started again, and
    `/healthz` of nats-server says so."""
    disk = world.disk
    assert disk is not None

    async def make_room() -> None:
        await asyncio.to_thread(disk.make_room)
        await world.nats.stop()
        await world.nats.start()

    await _full(world, directory, lambda: asyncio.to_thread(disk.fill), make_room, restarted=True)


async def the_storage_limit_of_jetstream_is_reached(world: World, directory: Path) -> None:
    """By a stream of somebody else. When that is gone all works again by itself."""
    async with nats_peer(world.nats_url, world.credentials / "registry-1.json") as other:
        js = other.client.jetstream()
        await js.add_stream(name=FILLER, subjects=["$KV.filler.>"], storage=api.StorageType.FILE)

        async def make_room() -> None:
            await js.delete_stream(FILLER)

        await _full(world, directory, lambda: _use_up(js), make_room, restarted=False)


async def _use_up(js: JetStreamContext) -> None:
    block = bytes(512 * 1024)
    with pytest.raises(APIError) as refused:
        while True:
            await js.publish("$KV.filler.block", block)
    assert refused.value.err_code == NO_ROOM


async def _full(
    world: World,
    directory: Path,
    fill: Callable[[], Awaitable[None]],
    make_room: Callable[[], Awaitable[None]],
    *,
    restarted: bool,
) -> None:
    """Args:
    restarted: making room restarts nats-server.
    """
    mover, newcomer = (BareMember("computer", NORTH, name) for name in ("mover", "newcomer"))
    async with scene(world, directory) as there, member(world.url(0), "computer", NORTH, NEIGHBOUR):
        await there.watchers[NORTH].told(ENTER, computer=NEIGHBOUR)
        try:
            for each in (mover, newcomer):
                await each.connect(world.url(0))
            await there.flying(NORTH, SOUTH)
            at = time.monotonic()
            await fill()
            await _until_refused(mover)
            await there.flying(NORTH, SOUTH)
            full = time.monotonic()
            while time.monotonic() < full + 2 * world.lease_s:
                await _refused(newcomer)
                await asyncio.sleep(0.2)
            room = time.monotonic()
            await make_room()
            made = Stopwatch()
            await eventually(lambda: _joined(newcomer), timeout=QUORUM_S, message="joins do not work")
            await there.result_after(made, 2 * RETRY_S, NORTH, SOUTH)
            fine = time.monotonic()
            await asyncio.sleep(1.5 * world.lease_s)  # a wrong leave would have come by then
            for office in (NORTH, SOUTH):
                assert there.noticed(office, CALLER) == ["enter"]
                assert there.noticed(office, WORKER) == []
            assert there.noticed(NORTH, NEIGHBOUR) == ["enter"]
        finally:
            await asyncio.gather(mover.close(), newcomer.close())
    for office in (NORTH, SOUTH):
        assert codes(flown(there, office, at)) == {None}
        assert codes(flown(there, office, full)) == {None}
        whole = there.calls(office) if not restarted else [*_before(there, office, room), *there.calls(office, fine)]
        assert codes(whole) == {None}
        assert codes(there.calls(office)) <= {None, 503}


def _before(there: Scene, office: str, moment: float) -> list[Call]:
    """The calls that were over by then."""
    return [call for call in there.calls(office) if call.ended is not None and call.ended < moment]


async def _until_refused(mover: BareMember) -> None:
    """Come and go until there is no room for that."""

    async def refused() -> str:
        return await _refusal(mover.join()) or await _refusal(mover.leave())

    said = await eventually(refused, timeout=FULL_S, message="there is room still")
    assert said.startswith("503 "), said


async def _refused(newcomer: BareMember) -> None:
    watch = Stopwatch()
    said = await _refusal(newcomer.join())
    assert said.startswith("503 "), said
    assert watch.undisturbed < REFUSED_S, f"a join was refused after {watch.took:.2f} s"


async def _joined(newcomer: BareMember) -> bool:
    return not await _refusal(newcomer.join())


async def _refusal(asked: Awaitable[None]) -> str:
    """Why it was refused; empty where it was done."""
    try:
        await asked
    except Refused as error:
        return str(error)
    return ""
