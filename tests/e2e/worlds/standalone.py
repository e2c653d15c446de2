"""World `standalone`: `smcp up`, as a newcomer starts it, and Computers of two more hosts that connect to it."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from smcp_standalone.nats_server import credential_path
from smcp_standalone.settings import UpOptions, up_model
from smcp_testing.ports import Ports
from tests.e2e.worlds.collector import collector_process, sent_to
from tests.e2e.worlds.layout import ALPHA, BETA, OTHER_ALPHA, Place, command
from tests.e2e.worlds.process import ForkedProcess
from tests.e2e.worlds.running import running
from tests.e2e.worlds.world import LEASE_S, ComputerHost, Gateway, World, child_environment


@asynccontextmanager
async def open_standalone(
    directory: Path,
    *,
    lease_s: float = LEASE_S,
    environment: Mapping[str, str] | None = None,
    more: Sequence[Place] = (),
    collector: bool = False,
) -> AsyncIterator[World]:
    """`smcp up` with `alpha` in it; `beta`, the other office's `alpha` and `more` come as hosts of their own.

    Args:
        collector: whether there is one, to which all parts send their spans.
    """
    ports, mark, places = Ports(), uuid4().hex, [BETA, OTHER_ALPHA, *more]
    nats_port, gateway_port, health_port = ports.take(), ports.take(), ports.take()
    hosts = {
        "offices": sorted({place.office for place in places}),
        "registries": [],
        "gateways": [],
        "computers": [
            {"credential": place.credential, "office": place.office, "names": [place.name]} for place in places
        ],
        "listen": f"127.0.0.1:{nats_port}",
    }
    hosts_file = directory / "hosts.json"  # YAML, too
    hosts_file.write_text(json.dumps(hosts, ensure_ascii=False), encoding="utf-8")
    data = directory / "data"
    nats_url = f"nats://127.0.0.1:{nats_port}"
    collected = collector_process(directory) if collector else None
    told = {**(environment or {}), **sent_to(collected)}
    settings = {"SMCP_LEASE_S": str(lease_s), "SMCP_STATS": "1", "SMCP_MCP_PORT": "0", **told}

    up = ForkedProcess(
        "up",
        [
            *(
                command("smcp"),
                "up",
                "--no-mcp",
                "--port",
                str(gateway_port),
                "--data",
                str(data),
                "--hosts",
                str(hosts_file),
            ),
            *("--config", str(ALPHA.config(directory)), "--office", ALPHA.office, "--name", ALPHA.name),
            "--insecure",  # clients of these scenarios have no tokens
        ],
        child_environment(mark, SMCP_HEALTH_PORT=str(health_port), **settings),
        directory,
        f"http://127.0.0.1:{gateway_port}/readyz",
        f"http://127.0.0.1:{health_port}",
    )

    def computer(place: Place) -> ComputerHost:
        port = ports.take()
        host = ForkedProcess(
            place.credential,
            [
                *(command("smcp-computer"), "run", "--config", str(place.config(directory))),
                *("--office", place.office, "--name", place.name),
            ],
            child_environment(
                mark,
                SMCP_NATS_URL=nats_url,
                SMCP_NATS_CREDS=str(credential_path(data / "nats", place.credential)),
                SMCP_HEALTH_PORT=str(port),
                **settings,
            ),
            directory,
            f"http://127.0.0.1:{port}/readyz",
        )
        return ComputerHost(place.office, place.name, host, place.ran(directory))

    world = World(
        name="standalone",
        nats=up,
        nats_url=nats_url,
        nats_model=up_model(UpOptions(ALPHA.office, ALPHA.name, hosts=hosts_file)),
        credentials=data / "nats" / "creds",
        registries=[up],
        gateways=[Gateway(f"http://127.0.0.1:{gateway_port}", up)],
        computers=[
            ComputerHost(ALPHA.office, ALPHA.name, up, ALPHA.ran(directory)),
            *(computer(place) for place in places),
        ],
        lease_s=lease_s,
        spread=False,
        mark=mark,
        collector=collected,
    )
    async with running(world):
        yield world
