"""The overlay `prod` with the Secrets that its README makes: a cluster of NATS with TLS, and the services on it."""

import asyncio
import base64
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from smcp_testing.certificates import Authority
from smcp_testing.ports import Ports
from tests.deploy.kubelet import Kubelet
from tests.deploy.rendering import README, ROOT, rendered
from tests.deploy.running import nats_server, probes_succeed, start

NODES = [f"smcp-nats-{number}" for number in range(3)]
_COMMAND = re.compile(r"^ {7,}(smcp .+?|kubectl create secret .+?)(?: {2,}#.*)?$", re.MULTILINE)
_NAMED_FOR_TLS = re.compile(r"with the names (.+?`)\.\n", re.DOTALL)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Made as the README says, command by command; instead of kubectl the files are read that it is given."""
    directory = tmp_path_factory.mktemp("prod")
    (directory / "deploy").symlink_to(ROOT / "deploy")
    text = README.read_text(encoding="utf-8")
    authority = Authority(directory)
    # 127.0.0.1 is where they are here.
    made = authority.certificate("127.0.0.1", *names_of_certificates(text))
    for name in ("tls", "gateway"):
        (directory / f"{name}.crt").write_bytes(made.cert.read_bytes())
        (directory / f"{name}.key").write_bytes(made.key.read_bytes())
    return dict(_made(text, directory))


def _made(text: str, directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    for line in _COMMAND.findall(text):
        words = shlex.split(line)
        if words[0] == "smcp":
            output = directory / words[-1] if words[-2] == ">" else directory / "printed"
            command = [
                str(Path(sys.executable).with_name("smcp")),
                *words[1 : words.index(">") if ">" in words else None],
            ]
            done = subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=60)
            output.write_bytes(done.stdout)
            continue
        _, _, _, kind, name, *options = words
        files = [option.partition("=")[2] for option in options]
        if kind == "tls":
            files = [f"tls.crt={files[0]}", f"tls.key={files[1]}"]
        held = {(key or Path(path).name): path for key, _, path in (file.rpartition("=") for file in files)}
        yield (
            name,
            {key: base64.b64encode((directory / path).read_bytes()).decode() for key, path in held.items()},
        )


def names_of_certificates(text: str) -> list[str]:
    """Which names of NATS the README says that certificates are to have."""
    named = _NAMED_FOR_TLS.search(text)
    assert named is not None
    return re.findall(r"`(.+?)`", named[1])


def test_certificates_have_the_names_that_clients_and_nodes_use() -> None:
    config = next(data for one in rendered("prod").of("ConfigMap") if "SMCP_NATS_URL" in (data := one["data"]))
    names = names_of_certificates(README.read_text(encoding="utf-8"))
    assert re.findall(r"tls://([^:]+):", config["SMCP_NATS_URL"]) == names == [f"{node}.smcp-nats" for node in NODES]


def copies_of_buckets(monitoring_url: str) -> dict[str, int]:
    """How often each record is kept, by stream."""
    with urllib.request.urlopen(f"{monitoring_url}/jsz?accounts=true&streams=true&config=true", timeout=30) as response:
        told = json.load(response)
    streams = [stream["config"] for account in told["account_details"] for stream in account.get("stream_detail", [])]
    return {stream["name"]: stream["num_replicas"] for stream in streams}


@pytest.mark.timeout(300)  # eight processes start, one after the other in part: 120 s were too few at a load of 14
async def test_services_run_on_a_three_node_cluster_with_the_certificates_of_the_readme(
    tmp_path: Path, secrets: dict[str, dict[str, str]]
) -> None:
    manifests = rendered("prod+computer+computer-nodes+nats-cluster+hpa-cpu")
    ports = Ports()
    routes = {node: ports.take() for node in NODES}
    places = {f"{node}.smcp-nats:6222": f"127.0.0.1:{port}" for node, port in routes.items()}
    async with AsyncExitStack() as stack:
        servers = {}
        for node in NODES:
            of_node = Kubelet(manifests, secrets, tmp_path / node)
            of_node.places |= places | {"0.0.0.0:6222": f"127.0.0.1:{routes[node]}"}
            servers[node] = await stack.enter_async_context(nats_server(of_node, tmp_path / f"{node}-log", node))
        kubelet = Kubelet(manifests, secrets, tmp_path / "pods")
        container = kubelet.container("smcp-nats", "nats")
        await asyncio.gather(*(probes_succeed(container, server.monitoring_url) for server in servers.values()))
        for node, server in servers.items():
            kubelet.places[f"tls://{node}.smcp-nats:4222"] = server.url.replace("nats://", "tls://")
        services = ("gateway", "registry", "computer")
        gateway, *_ = await asyncio.gather(*(start(stack, kubelet, name) for name in services))
        kubelet.places["http://smcp-gateway-any:8000"] = gateway.url
        await start(stack, kubelet, "computer-nodes")
        copies = await asyncio.to_thread(copies_of_buckets, servers[NODES[0]].monitoring_url)
        assert copies == {"KV_members": 3, "KV_leases": 3, "KV_moving": 3, "AUDIT": 3}
