"""World `processes`: every part is an installed command of its own, on one nats-server with all permissions on."""

from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from smcp_standalone import nats_server
from smcp_standalone.nats_config_file import NatsModel
from smcp_standalone.nats_server import find_binary
from smcp_testing.ports import Ports
from smcp_testing.tcp_proxy import Line
from tests.e2e.worlds.collector import collector_process, sent_to
from tests.e2e.worlds.layout import PLACES, Place, command, connected
from tests.e2e.worlds.process import ForkedProcess, Process
from tests.e2e.worlds.running import running
from tests.e2e.worlds.world import LEASE_S, ComputerHost, Gateway, World, child_environment


@asynccontextmanager
async def open_processes(
    directory: Path,
    *,
    lease_s: float = LEASE_S,
    gateways: int = 2,
    registries: int = 2,
    environment: Mapping[str, str] | None = None,
    of_their_own: Mapping[str, Mapping[str, str]] | None = None,
    places: Sequence[Place] = PLACES,
    more: Sequence[Place] = (),
    known: Sequence[Place] = (),
    offices: Sequence[str] = (),
    later: Container[int] = (),
    over: Mapping[str, Line] | None = None,
    rebalance_s: float = 0,
    collector: bool = False,
) -> AsyncIterator[World]:
    """One nats-server, `registries`, `gateways`, and the Computers of the layout; all ready, and all gone after it.

    Args:
        environment: what is set for every part; `of_their_own`: what beside it, by credential (`gateway-2`).
        places: the Computers of the layout; `more`: those beside them.
        known: Computers that have credentials, and are not started; `offices`: those without any Computer of a world.
        later: numbers of gateways that are not started.
        rebalance_s: over how long gateways tell clients above their fair share to go; tests choose which one has whom.
        collector: whether there is one, to which all parts send their spans.
        over: the lines over which parts reach nats-server, by credential; the others reach it directly.
    """
    ports, mark, places = Ports(), uuid4().hex, [*places, *more]
    nats_port, monitoring = ports.take(), ports.take()
    listens = {"listen": nats_port, "http": monitoring}
    model = _model(listens, gateways, registries, [*places, *known], offices)
    written = nats_server.write(model, directory / "nats")
    nats_url = f"nats://127.0.0.1:{nats_port}"
    collected = collector_process(directory) if collector else None
    told = {**(environment or {}), **sent_to(collected)}
    lines = over or {}
    for line in lines.values():
        line.port = nats_port

    def reached_at(credential: str) -> str:
        return f"nats://{urlsplit(lines[credential].url).netloc}" if credential in lines else nats_url

    def part(
        name: str,
        credential: str,
        *arguments: str,
        clients: bool = False,
        over_gateway: str | None = None,
        **settings: str,
    ) -> Process:
        health = port = ports.take()
        if clients:
            port = ports.take()
            settings["SMCP_GATEWAY_PORT"] = str(port)
        env = child_environment(
            mark,
            SMCP_LEASE_S=str(lease_s),
            SMCP_STATS="1",
            SMCP_HEALTH_PORT=str(health),
            **connected(reached_at(credential), written.credentials[credential], over_gateway),
            **{**told, **(of_their_own or {}).get(credential, {})},
            **settings,
        )
        ready, asked = f"http://127.0.0.1:{port}/readyz", f"http://127.0.0.1:{health}"
        return ForkedProcess(credential, [command(name), *arguments], env, directory, ready, asked)

    def computer(place: Place) -> ComputerHost:
        arguments = ("run", "--config", str(place.config(directory)), "--office", place.office, "--name", place.name)
        host = part(
            "smcp-computer", place.credential, *arguments, over_gateway=place.gateway and started[place.gateway].url
        )
        return ComputerHost(place.office, place.name, host, place.ran(directory))

    def gateway(credential: str) -> Gateway:
        process = part("smcp-gateway", credential, clients=True, SMCP_REBALANCE_S=f"{rebalance_s:g}")
        return Gateway(process.ready_url.removesuffix("/readyz"), process)

    nats = Process(
        "nats",
        [find_binary(), "-c", str(written.conf)],
        child_environment(mark),
        directory,
        f"http://127.0.0.1:{monitoring}/healthz",
    )
    started = {name: gateway(name) for name in model.gateways}
    world = World(
        name="processes",
        nats=nats,
        nats_url=nats_url,
        nats_model=model,
        credentials=written.conf.parent / "creds",
        registries=[part("smcp-registry", name) for name in model.registries],
        gateways=list(started.values()),
        computers=[computer(place) for place in places],
        lease_s=lease_s,
        spread=True,
        mark=mark,
        collector=collected,
    )
    async with running(world, later=[gateway.part for number, gateway in enumerate(world.gateways) if number in later]):
        yield world


def _model(
    listens: Mapping[str, int], gateways: int, registries: int, places: Sequence[Place], offices: Sequence[str]
) -> NatsModel:
    return NatsModel.model_validate(
        {
            "offices": sorted({*offices, *(place.office for place in places)}),
            "registries": [f"registry-{number}" for number in range(1, registries + 1)],
            "gateways": [f"gateway-{number}" for number in range(1, gateways + 1)],
            "operators": ["operator"],
            "computers": [
                {"credential": place.credential, "office": place.office, "names": [place.name]} for place in places
            ],
            **{field: f"127.0.0.1:{port}" for field, port in listens.items()},
        }
    )
