"""World `containers`: every part runs in a container of the images of this tree, on a network of the world's own."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

from tests.e2e.worlds.container_parts import LABEL, ContainerParts
from tests.e2e.worlds.engine import TAG, require_engine
from tests.e2e.worlds.layout import PLACES, Place
from tests.e2e.worlds.network import CutNetwork
from tests.e2e.worlds.running import running
from tests.e2e.worlds.world import LEASE_S, World


@asynccontextmanager
async def open_containers(
    directory: Path,
    *,
    lease_s: float = LEASE_S,
    gateways: int = 2,
    registries: int = 2,
    environment: Mapping[str, str] | None = None,
    of_their_own: Mapping[str, Mapping[str, str]] | None = None,
    places: Sequence[Place] = PLACES,
    more: Sequence[Place] = (),
    shown: Sequence[Path] = (),
    tag: str = TAG,
    nodes: int = 1,
    store: str | None = None,
    ahead: Mapping[str, int] | None = None,
    offices: Sequence[str] = (),
    later: Collection[int] = (),
    rebalance_s: float = 0,
    health_s: float | None = None,
    collector: bool = False,
) -> AsyncIterator[World]:
    """As `open_processes`, each part in its container: hardened as in docker/compose.yaml, and reached by its name.

    Skips where there is no docker engine; with `CONTAINERS=true` it fails there.

    Args:
        environment: what is set for every part; `of_their_own`: what beside it, by credential (`gateway-2`).
        places: the Computers of the layout; `more`: those beside them.
        shown: directories of this machine that Computers may read, at the same path.
        tag: of the images.
        nodes: of NATS: 1, or 3 that keep the rooms together.
        store: how large JetStream's disk is (`8m`), which is in memory then; for one node.
        ahead: by how many seconds the clock of a part is wrong, by its credential.
        offices: those without any Computer of the world.
        later: numbers of gateways that are not started.
        rebalance_s: over how long gateways tell clients above their fair share to go; tests choose which one has whom.
        health_s: how often the engine asks for health (seconds); None: never.
        collector: whether there is one, to which all services send their spans.
    """
    require_engine()
    mark = uuid4().hex
    with CutNetwork(f"smcp-e2e-{mark}", {LABEL: mark}) as network, ExitStack() as stack:
        parts = ContainerParts(
            stack=stack,
            directory=directory,
            mark=mark,
            network=network,
            lease_s=lease_s,
            gateways=gateways,
            registries=registries,
            environment=environment or {},
            of_their_own=of_their_own or {},
            places=[*places, *more],
            shown=shown,
            tag=tag,
            nodes=nodes,
            store=store,
            ahead=ahead or {},
            offices=offices,
            rebalance_s=rebalance_s,
            health_s=health_s,
            collector=collector,
        )
        world = parts.world()
        async with running(world, [each.part for number, each in enumerate(world.gateways) if number in later]):
            yield world
