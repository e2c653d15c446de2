"""Starting and stopping a world: nothing of it stays, and nothing ends in a way that nobody sees."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

import aiohttp

from smcp_testing.waiting import eventually
from tests.e2e.worlds.world import Part, World, strays


@asynccontextmanager
async def running(world: World, later: Collection[Part] = ()) -> AsyncIterator[None]:
    """Start the parts in their order, and stop them in the opposite one, those of a kind at the same time.

    Args:
        later: these are for the block to start.

    Raises:
        AssertionError: a part did not become ready, did not end with 0, or left processes behind.
    """
    async with _collecting(world), _parts_running(world, later):
        yield


@asynccontextmanager
async def _parts_running(world: World, later: Collection[Part]) -> AsyncIterator[None]:
    try:
        with world.telling():
            await _start(world.nodes)
            # The others wait for each other by themselves, as they do where nobody orders them.
            await _start([part for part in world.parts if part not in world.nodes and part not in later])
            await _all_is_told(world)
            yield
    except BaseException:
        for part in reversed(world.parts):
            if part.running:
                part.resume()
                await part.kill()
        raise
    with world.telling():
        wrong = [said for alike in _stages(world) for said in await _stop(alike, world)]
        await eventually(lambda: not strays(world.mark), message=f"{world.name}: processes stay behind")
        assert not wrong, wrong


async def _start(parts: Sequence[Part]) -> None:
    _raise_first(await asyncio.gather(*(part.start() for part in parts), return_exceptions=True))


async def _all_is_told(world: World) -> None:
    """What changed in the Computers' start is not news to anybody who comes now."""

    async def told(part: Part) -> bool:
        async with http.get(part.stats_url) as response:
            held = await response.json()
        return not held.get("updates", {}).get("pending")  # images of a commit before may not say it

    async with aiohttp.ClientSession() as http:
        for host in world.computers:
            if host.part.running:
                await eventually(partial(told, host.part), message=f"{host.part.name} still has something to tell")


def _stages(world: World) -> list[list[Part]]:
    """Each part once, the last ones first."""
    gateways = [gateway.part for gateway in world.gateways]
    kinds: list[Sequence[Part]] = [world.nodes, world.registries, gateways]
    known: set[int] = set()
    stages = []
    for kind in kinds:
        stages.append([part for part in kind if id(part) not in known])
        known.update(map(id, kind))
    stages.append([part for part in world.parts if id(part) not in known])
    return stages[::-1]


async def _stop(parts: Sequence[Part], world: World) -> list[str]:
    """Stop them; says what was wrong with that."""
    stopping = (_stopped(part, part in world.nodes) for part in parts)
    results = await asyncio.gather(*stopping, return_exceptions=True)
    _raise_first(results)
    return [said for said in results if isinstance(said, str)]


async def _stopped(part: Part, of_nats: bool) -> str | None:
    """Stop it; says what was wrong with that."""
    if not part.wanted:
        return None
    if not part.running:
        return f"{part.name} had ended by itself"
    code = await part.stop()
    return None if code == 0 or of_nats else f"{part.name} ended with {code}"


def _raise_first(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


@asynccontextmanager
async def _collecting(world: World) -> AsyncIterator[None]:
    """The collector is there before the first span, and until the last one; a test may have stopped it."""
    if world.collector is None:
        yield
        return
    part = world.collector.part
    await part.start()
    try:
        yield
    finally:
        if part.running:
            await part.stop()
