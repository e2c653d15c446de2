"""What `kubectl apply -k deploy/k8s` runs, run on this machine: NATS, the services, and the Agent that calls a tool.

Real processes with the manifests' commands, variables and files; see `tests.deploy.kubelet` for what is not shown.
"""

import asyncio
import base64
import functools
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from smcp_auth import api_keys
from smcp_auth.api_keys import new_key
from smcp_testing.gateway_world import connected
from smcp_testing.mcp_service import office_client
from smcp_testing.waiting import eventually
from tests.deploy.kubelet import Kubelet, run
from tests.deploy.rendering import ROOT, rendered
from tests.deploy.running import nats_server, probes_succeed, start
from tests.deploy.secrets_api import SecretsApi

UV = str(Path(sys.executable).with_name("uv"))
OFFICE = "demo office"
once = functools.cache(rendered)
SERVICES = ("smcp-registry", "smcp-gateway", "smcp-computer", "smcp-mcp")

pytestmark = pytest.mark.timeout(300)
"""On a busy machine each program needs half a minute until it has imported everything."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The MCP servers that the demo's image has, of the same versions, as programs in one directory."""
    directory = tmp_path_factory.mktemp("image")
    lock, environment = str(ROOT / "docker" / "compose" / "servers.lock"), str(directory / "all")
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True, timeout=60)
    install = [UV, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirements", lock]
    subprocess.run([*install, "--python", environment], check=True, timeout=300)
    # Not the directory of all programs: what else is there would come before what the other images have.
    (directory / "bin").mkdir()
    for name in ("mcp-server-git", "mcp-server-time"):
        (directory / "bin" / name).symlink_to(directory / "all" / "bin" / name)
    return directory / "bin"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[str, str]]:
    """What the Job that makes the Secrets leaves in the cluster."""

    async def made(directory: Path) -> dict[str, dict[str, str]]:
        api = SecretsApi(once("dev"))
        kubelet = Kubelet(once("dev"), api.secrets, directory / "pods")
        async with api.open(directory / "account") as account:
            command, variables = kubelet.command(kubelet.container("smcp-secrets", "secrets"), **account)
            code, _, errors = await run([sys.executable, *command[1:]], variables)
        assert code == 0, errors
        return api.secrets

    return asyncio.run(made(tmp_path_factory.mktemp("secrets")))


@pytest.fixture
def kubelet(tmp_path: Path, programs: Path, secrets: Mapping[str, dict[str, str]]) -> Kubelet:
    return Kubelet(once("dev"), secrets, tmp_path / "pods", programs)


@pytest.mark.parametrize("workload", SERVICES)
async def test_check_config_accepts_the_configuration_of_a_pod_and_names_a_wrong_value(
    workload: str, kubelet: Kubelet
) -> None:
    step = kubelet.container(workload, "check-config")
    right, wrong = kubelet.command(step), kubelet.command(step, SMCP_DRAIN_S="a minute")
    (code, output, errors), (code_of_wrong, _, errors_of_wrong) = await asyncio.gather(run(*right), run(*wrong))
    assert (code, errors) == (0, "")
    assert "SMCP_DRAIN_S=60" in output
    assert code_of_wrong == 2
    assert "SMCP_DRAIN_S: " in errors_of_wrong
    assert "Traceback" not in errors_of_wrong


async def test_the_demo_agent_and_an_mcp_client_call_a_tool(
    tmp_path: Path, kubelet: Kubelet, secrets: Mapping[str, dict[str, str]]
) -> None:
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(kubelet, tmp_path / "nats"))
        await probes_succeed(kubelet.container("smcp-nats", "nats"), nats.monitoring_url)
        repository = tmp_path / "repository"
        repository.mkdir()
        kubelet.places |= {"nats://smcp-nats:4222": nats.url, "/repository": str(repository)}
        code, _, errors = await run(*kubelet.command(kubelet.container("smcp-computer", "repository")))
        assert code == 0, errors
        # All at once, as pods are: two gateways of one credential and one pod's name among them.
        services = ("gateway", "gateway", "registry", "registry", "computer")
        # beside so many starts an MCP server may need more than its 30 s, and then has no tool until it is tried again
        own = {"computer": {"SMCP_START_S": "120"}}
        one, other, *_ = await asyncio.gather(*(start(stack, kubelet, name, **own.get(name, {})) for name in services))
        assert one.url != other.url
        for gateway in (one, other):
            kubelet.places["http://smcp-gateway:8000"] = gateway.url
            code, output, errors = await run(*kubelet.command(kubelet.container("smcp-demo", "agent")))
            assert code == 0, (output, errors)
            assert "The pod's repository was made" in output
        mcp = await start(stack, kubelet, "mcp")
        url = f"{(await mcp.process.logged('listening'))['url']}/mcp/demo%20office"
        token = base64.b64decode(secrets["smcp-agent"]["token"]).decode()
        async with office_client(url, Authorization=f"Bearer {token}") as client:
            assert "The pod's repository was made" in await client.text("git_log", repo_path=str(repository))


async def test_two_gateways_with_one_credential_keep_separate_members(tmp_path: Path, kubelet: Kubelet) -> None:
    key, entry = new_key(subject=None, offices=[OFFICE], roles=["agent", "computer"], names=["*"])
    api_keys.add(tmp_path / "keys.json", entry)  # the demo's key is for Agents alone
    auth, keys = {"token": key}, {"SMCP_AUTH_KEYS": str(tmp_path / "keys.json")}
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(kubelet, tmp_path / "nats"))
        kubelet.places["nats://smcp-nats:4222"] = nats.url
        lease = {"SMCP_LEASE_S": "6"}  # the registry and both gateways are to have the same one
        own = {"gateway": lease | keys, "registry": lease}
        services = ("gateway", "gateway", "registry")
        one, other, _ = await asyncio.gather(*(start(stack, kubelet, name, **own[name]) for name in services))
        left = await stack.enter_async_context(connected(one.url, auth=auth))
        stays = await stack.enter_async_context(connected(other.url, auth=auth))
        agent = await stack.enter_async_context(connected(other.url, auth=auth))
        assert await left.join("computer", "left", OFFICE) == [True, None]
        assert await stays.join("computer", "stays", OFFICE) == [True, None]
        assert await agent.join("agent", "anna", OFFICE) == [True, None]
        one.process.signal(signal.SIGKILL)
        await eventually(lambda: agent.told("notify:leave_office"), timeout=30)
        assert [told["computer"] for told in agent.told("notify:leave_office")] == ["left"]
        listed = await agent.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": OFFICE})
        assert {session["name"] for session in listed["sessions"]} == {"anna", "stays"}


async def test_the_demo_agent_exits_with_an_error_when_no_gateway_answers(
    kubelet: Kubelet,
) -> None:
    kubelet.places["http://smcp-gateway:8000"] = "http://127.0.0.1:9"
    code, _, errors = await run(*kubelet.command(kubelet.container("smcp-demo", "agent")))
    assert code == 1
    assert "Traceback" not in errors
