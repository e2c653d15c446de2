"""Gateways, registries and the nodes of NATS are restarted, one after the other."""

from pathlib import Path

from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.outages.scene import codes, scene
from tests.e2e.worlds.world import World


async def all_processes_are_restarted_one_by_one(world: World, directory: Path) -> None:
    """The Agents know of both gateways. No call is lost."""
    urls = {NORTH: [world.url(0), world.url(1)], SOUTH: [world.url(1), world.url(0)]}
    async with scene(world, directory, urls) as there:
        for part in [*(gateway.part for gateway in world.gateways), *world.registries, *world.nodes]:
            code = await part.stop()
            assert code == 0 or part in world.nodes, f"{part.name} ended with {code}"
            await part.start()
    for office in urls:
        lost = [call for call in there.calls(office) if call.error is not None]
        assert not lost, f"{len(lost)} of {len(there.calls(office))}: {lost[:5]}"
        assert codes(there.calls(office)) == {None}
        assert "leave" not in there.noticed(office, WORKER)
