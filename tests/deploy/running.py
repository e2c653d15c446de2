"""Pods' main processes on this machine, and their probes."""

import asyncio
import functools
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest.mock import patch

from smcp_testing.nats_process import NatsServer
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually
from tests.deploy.kubelet import Kubelet
from tests.deploy.objects import Container

START_S: Final = 60.0
_HEALTH: Final = {"SMCP_HEALTH_HOST": "127.0.0.1", "SMCP_HEALTH_PORT": "0"}
_GATEWAY: Final = {"SMCP_GATEWAY_HOST": "127.0.0.1", "SMCP_GATEWAY_PORT": "0", **_HEALTH}
_LOGS: Final = {
    "registry": ("ready", "health", _HEALTH),
    "gateway": ("ready", "url", _GATEWAY),
    "mcp": ("listening", "health", {"SMCP_MCP_HOST": "127.0.0.1", "SMCP_MCP_PORT": "0", **_HEALTH}),
    "computer": ("serving", "health", _HEALTH),
    "computer-nodes": ("serving", "health", _HEALTH),
}
"""By container: what it logs once it runs, where that says its address, and what puts it on this machine's loopback."""


@dataclass(frozen=True)
class Running:
    """A container's process, and where it answers."""

    process: ServiceProcess
    url: str


async def start(stack: AsyncExitStack, kubelet: Kubelet, name: str, **over: str) -> Running:
    """Run the container `name` of the workload `smcp-<name>` until `stack` is left, with some variables put over.

    Returns once all of its probes succeed.
    """
    container = kubelet.container(f"smcp-{name}", name)
    event, where, here = _LOGS[name]
    command, variables = kubelet.command(container, OTEL_EXPORTER_OTLP_ENDPOINT="", **here, **over)
    process = await stack.enter_async_context(service_process(*command, env=variables))
    url = str((await process.logged(event, timeout=START_S))[where])
    await probes_succeed(container, url)
    return Running(process, url)


@asynccontextmanager
async def nats_server(kubelet: Kubelet, directory: Path, pod: str = "smcp-nats-0") -> AsyncIterator[NatsServer]:
    """With the configuration and variables of the manifests; only what it listens on and its store are elsewhere."""
    kubelet.places["0.0.0.0:8222"] = "127.0.0.1:-1"
    container = kubelet.container("smcp-nats", "nats")
    (option, config), variables = kubelet.command(container, POD_NAME=pod)
    assert option == "-c"
    server = NatsServer(directory, config=Path(config), jetstream=False)
    with patch.dict(os.environ, {entry["name"]: variables[entry["name"]] for entry in container.spec["env"]}):
        await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def probes_succeed(container: Container, url: str) -> None:
    """Every probe of a container, with its own path, at where it listens here."""
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = container.spec[probe]["httpGet"]["path"]
        await eventually(functools.partial(asyncio.to_thread, _answers, url + path), timeout=START_S, message=path)


def _answers(url: str) -> bool:
    """Raises AssertionError where it answers that it is not well."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{error.code} {error.read().decode()}") from error
