"""World `containers`: every part runs in a container of the images of this tree, on a network of the world's own."""

import json
import os
import random
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from uuid import uuid4

from smcp_standalone.nats_model import NatsModel
from tests.e2e.worlds import clocks, nats_nodes
from tests.e2e.worlds.container import USER, Container, Made, hand_over, in_image
from tests.e2e.worlds.disk import Disk, open_disk
from tests.e2e.worlds.engine import TAG, docker, image, nats_image, require_engine
from tests.e2e.worlds.layout import PLACES, Place
from tests.e2e.worlds.nats_nodes import CLIENTS, MONITORING
from tests.e2e.worlds.ports import Ports
from tests.e2e.worlds.running import running
from tests.e2e.worlds.world import LEASE_S, MARK, ComputerHost, Gateway, World, child_environment

LABEL = "smcp.e2e"
"""Of all containers and networks of the tests: `docker ps --filter label=smcp.e2e` finds what a killed run left."""
_HEALTH, _CLIENTS = 8080, 8000


@asynccontextmanager
async def open_containers(
    directory: Path,
    *,
    lease_s: float = LEASE_S,
    gateways: int = 2,
    registries: int = 2,
    environment: Mapping[str, str] | None = None,
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
) -> AsyncIterator[World]:
    """As `open_processes`, each part in its container: hardened as in docker/compose.yaml, and reached by its name.

    Skips where there is no docker engine; with `CONTAINERS=true` it fails there.

    Args:
        environment: what is set for every part.
        places: the Computers of the layout; `more`: those beside them.
        shown: directories of this machine that Computers may read, at the same path.
        tag: of the images.
        nodes: of NATS: 1, or 3 that keep the rooms together.
        store: how large JetStream's disk is (`8m`), which is in memory then; for one node.
        ahead: by how many seconds the clock of a part is wrong, by its credential.
        offices: those without any Computer of the world.
        later: numbers of gateways that are not started.
        rebalance_s: over how long gateways tell clients above their fair share to go; tests choose which one has whom.
    """
    require_engine()
    with ExitStack() as stack:
        computers = [*places, *more]
        world = _made(
            stack,
            directory,
            lease_s,
            gateways,
            registries,
            environment or {},
            computers,
            shown,
            tag,
            nodes,
            store,
            ahead or {},
            offices,
            rebalance_s,
        )
        async with running(world, [each.part for number, each in enumerate(world.gateways) if number in later]):
            yield world


def _made(
    stack: ExitStack,
    directory: Path,
    lease_s: float,
    gateways: int,
    registries: int,
    environment: Mapping[str, str],
    places: Sequence[Place],
    shown: Sequence[Path],
    tag: str,
    nodes: int,
    store: str | None,
    ahead: Mapping[str, int],
    offices: Sequence[str],
    rebalance_s: float,
) -> World:
    mark, ports = uuid4().hex, Ports()
    network = stack.enter_context(_network(mark))
    nats_port, monitoring = ports.take(), ports.take()
    names = ["nats", *(f"nats-{number}" for number in range(2, nodes + 1))]
    model = NatsModel.model_validate(
        {
            "offices": sorted({*offices, *(place.office for place in places)}),
            "registries": registries,
            "gateways": gateways,
            "computers": [
                {"credential": place.credential, "office": place.office, "names": [place.name]} for place in places
            ],
            "listen": f"127.0.0.1:{nats_port}",
            "http": f"127.0.0.1:{monitoring}",
        }
    )
    written = nats_nodes.write(model, directory, names)
    disk, volumes = None, {}
    if store is not None:
        disk = stack.enter_context(_disk(mark, store, image("smcp-registry", tag)))
        volumes[disk.volume] = written.conf.parent / model.jetstream.store_dir
    settings = {
        MARK: mark,
        "SMCP_NATS_URL": ",".join(f"nats://{name}:{CLIENTS}" for name in names),
        "SMCP_LEASE_S": str(lease_s),
        "SMCP_STATS": "1",
        "SMCP_INSECURE": "1",  # clients of these scenarios have no tokens, and a container's loopback is its own
        "SMCP_LOG_FORMAT": "json",
        **environment,
    }

    def part(
        name: str,
        tagged: str,
        *arguments: str,
        publish: Mapping[int, int],
        mounts: Sequence[Path],
        ready: str,
        **own: str,
    ) -> Container:
        readable = shown if tagged.startswith("smcp-computer") else ()
        alias, kept = (name, volumes) if name in names else (None, {})
        made = Made(
            tagged, arguments, {**settings, **own}, network, publish, mounts, readable, alias, {LABEL: mark}, kept
        )
        container = Container(name, made, child_environment(mark), directory, ready)
        stack.callback(container.remove)
        return container

    def service(
        kind: str, credential: str, port_inside: int, *arguments: str, mounts: Sequence[Path] = (), **own: str
    ) -> Container:
        port, creds, tagged, clock = ports.take(), written.credentials[credential], image(kind, tag), {}
        if credential in ahead:
            tagged, clock = clocks.with_faketime(tagged), clocks.ahead(ahead[credential])
        replicas = {"SMCP_KV_REPLICAS": str(min(nodes, 3))} if kind == "smcp-registry" else {}
        return part(
            credential,
            tagged,
            *arguments,
            publish={port_inside: port},
            mounts=[creds, *mounts],
            ready=f"http://127.0.0.1:{port}/readyz",
            SMCP_NATS_CREDS=str(creds),
            **replicas,
            **clock,
            **own,
        )

    def gateway(credential: str) -> Gateway:
        container = service("smcp-gateway", credential, _CLIENTS, SMCP_REBALANCE_S=f"{rebalance_s:g}")
        return Gateway(container.ready_url.removesuffix("/readyz"), container)

    def computer(place: Place) -> ComputerHost:
        home = directory / place.credential
        home.mkdir()
        config = _config(place, home)
        hand_over(home)
        arguments = ("run", "--config", str(config), "--office", place.office, "--name", place.name)
        host = service("smcp-computer-testing", place.credential, _HEALTH, *arguments, mounts=[home])
        return ComputerHost(place.office, place.name, host, place.ran(home))

    def node(name: str, port: int, monitoring: int) -> Container:
        home = directory / name
        hand_over(home)
        return part(
            name,
            nats_image(),
            "-c",
            str(home / written.conf.name),
            publish={CLIENTS: port, MONITORING: monitoring},
            mounts=[home],
            ready=f"http://127.0.0.1:{monitoring}/healthz",
        )

    return World(
        name="containers",
        nats=node(names[0], nats_port, monitoring),
        more_nats=[node(name, ports.take(), ports.take()) for name in names[1:]],
        nats_url=f"nats://127.0.0.1:{nats_port}",
        nats_model=model,
        credentials=written.conf.parent / "creds",
        registries=[service("smcp-registry", name, _HEALTH) for name in model.registry_credentials],
        gateways=[gateway(name) for name in model.gateway_credentials],
        computers=[computer(place) for place in places],
        lease_s=lease_s,
        spread=True,
        mark=mark,
        disk=disk,
    )


def _config(place: Place, home: Path) -> Path:
    """The Computer's configuration, with the MCP servers that are in the image."""
    path = place.config(home)
    told = json.loads(path.read_text(encoding="utf-8"))
    servers = {name: in_image(server) for name, server in told["servers"].items()}
    path.write_text(json.dumps({**told, "servers": servers}), encoding="utf-8")
    return path


@contextmanager
def _network(mark: str) -> Iterator[str]:
    name = f"smcp-e2e-{mark}"
    docker("network", "create", "--label", f"{LABEL}={mark}", "--subnet", _free_subnet(), name)
    try:
        yield name
    finally:
        docker("network", "rm", name)


def _free_subnet() -> str:
    """One that no network of the engine has: only there a container may come back to its address."""
    networks = docker("network", "ls", "--quiet").split()
    taken = [
        IPv4Network(subnet)
        for subnet in docker(
            "network", "inspect", "--format", "{{range .IPAM.Config}}{{.Subnet}} {{end}}", *networks
        ).split()
    ]
    return next(str(subnet) for subnet in _candidates() if not any(subnet.overlaps(other) for other in taken))


def _candidates() -> Iterator[IPv4Network]:
    while True:
        yield IPv4Network((random.randrange(0x0AC80000, 0x0AFF0000) & ~0xFF, 24))  # of 10.200.0.0 to 10.254.255.0


def _disk(mark: str, size: str, any_image: str) -> AbstractContextManager[Disk]:
    user = USER if os.getuid() == 0 else os.getuid()
    return open_disk(f"smcp-e2e-{mark}", size, user=user, image=any_image, labels=["--label", f"{LABEL}={mark}"])
