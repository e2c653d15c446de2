"""World `containers`: every part runs in a container of the images of this tree, on a network of the world's own."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

from smcp_standalone import nats_files
from smcp_standalone.nats_model import NatsModel
from tests.e2e.worlds.container import Container, Made, hand_over, in_image
from tests.e2e.worlds.engine import TAG, docker, image, nats_image, require_engine
from tests.e2e.worlds.layout import PLACES, Place
from tests.e2e.worlds.ports import Ports
from tests.e2e.worlds.running import running
from tests.e2e.worlds.world import LEASE_S, MARK, ComputerHost, Gateway, World, child_environment

LABEL = "smcp.e2e"
"""Of all containers and networks of the tests: `docker ps --filter label=smcp.e2e` finds what a killed run left."""
_NATS, _MONITORING, _HEALTH, _CLIENTS = 4222, 8222, 8080, 8000


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
) -> AsyncIterator[World]:
    """As `open_processes`, each part in its container: hardened as in docker/compose.yaml, and reached by its name.

    Skips where there is no docker engine; with `CONTAINERS=true` it fails there.

    Args:
        environment: what is set for every part.
        places: the Computers of the layout; `more`: those beside them.
        shown: directories of this machine that Computers may read, at the same path.
        tag: of the images.
    """
    require_engine()
    with ExitStack() as stack:
        world = _made(stack, directory, lease_s, gateways, registries, environment or {}, [*places, *more], shown, tag)
        async with running(world):
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
) -> World:
    mark, ports = uuid4().hex, Ports()
    network = stack.enter_context(_network(mark))
    nats_port, monitoring = ports.take(), ports.take()
    model = NatsModel.model_validate(
        {
            "offices": sorted({place.office for place in places}),
            "registries": registries,
            "gateways": gateways,
            "computers": [
                {"credential": place.credential, "office": place.office, "names": [place.name]} for place in places
            ],
            "listen": f"127.0.0.1:{nats_port}",
            "http": f"127.0.0.1:{monitoring}",
        }
    )
    inside = {"listen": f"0.0.0.0:{_NATS}", "http": f"0.0.0.0:{_MONITORING}"}
    written = nats_files.write(model.model_copy(update=inside), directory / "nats")
    settings = {
        MARK: mark,
        "SMCP_NATS_URL": f"nats://nats:{_NATS}",
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
        alias = name if name == "nats" else None
        made = Made(tagged, arguments, {**settings, **own}, network, publish, mounts, readable, alias, {LABEL: mark})
        container = Container(name, made, child_environment(mark), directory, ready)
        stack.callback(container.remove)
        return container

    def service(
        kind: str, credential: str, port_inside: int, *arguments: str, mounts: Sequence[Path] = ()
    ) -> Container:
        port, creds = ports.take(), written.credentials[credential]
        return part(
            credential,
            image(kind, tag),
            *arguments,
            publish={port_inside: port},
            mounts=[creds, *mounts],
            ready=f"http://127.0.0.1:{port}/readyz",
            SMCP_NATS_CREDS=str(creds),
        )

    def gateway(credential: str) -> Gateway:
        container = service("smcp-gateway", credential, _CLIENTS)
        return Gateway(container.ready_url.removesuffix("/readyz"), container)

    def computer(place: Place) -> ComputerHost:
        home = directory / place.credential
        home.mkdir()
        config = _config(place, home)
        hand_over(home)
        arguments = ("run", "--config", str(config), "--office", place.office, "--name", place.name)
        host = service("smcp-computer-testing", place.credential, _HEALTH, *arguments, mounts=[home])
        return ComputerHost(place.office, place.name, host, place.ran(home))

    hand_over(directory / "nats")
    nats = part(
        "nats",
        nats_image(),
        "-c",
        str(written.conf),
        publish={_NATS: nats_port, _MONITORING: monitoring},
        mounts=[directory / "nats"],
        ready=f"http://127.0.0.1:{monitoring}/healthz",
    )
    return World(
        name="containers",
        nats=nats,
        nats_url=f"nats://127.0.0.1:{nats_port}",
        nats_model=model,
        credentials=written.conf.parent / "creds",
        registries=[service("smcp-registry", name, _HEALTH) for name in model.registry_credentials],
        gateways=[gateway(name) for name in model.gateway_credentials],
        computers=[computer(place) for place in places],
        lease_s=lease_s,
        spread=True,
        mark=mark,
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
    docker("network", "create", "--label", f"{LABEL}={mark}", name)
    try:
        yield name
    finally:
        docker("network", "rm", name)
