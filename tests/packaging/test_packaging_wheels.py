"""Every distribution as it is released: built, installed into a clean environment, and used."""

import json
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from smcp_testing.mcp_servers import configs
from smcp_testing.ports import Ports
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.process import Process
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import LAB, child_environment
from tests.packaging.wheelhouse import ROOT, Wheelhouse, run

PROJECTS = {
    tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"]: path.parent
    for path in [*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]
}
SERVICE = ("smcp-proto", "smcp-bus", "smcp-service")
NEEDED = {
    "smcp-agent": ("smcp-proto", "smcp-agent"),
    "smcp-computer": (*SERVICE, "smcp-agent", "smcp-computer"),
    "smcp-gateway": (*SERVICE, "smcp-auth", "smcp-gateway"),
    "smcp-mcp": (*SERVICE, "smcp-auth", "smcp-agent", "smcp-mcp"),
    "smcp-registry": (*SERVICE, "smcp-registry"),
    "smcp": (
        *(*SERVICE, "smcp-auth", "smcp-agent", "smcp-computer", "smcp-gateway", "smcp-mcp", "smcp-registry"),
        "smcp-standalone",
    ),
}
"""Of ours, by command."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Wheelhouse:
    return Wheelhouse(tmp_path_factory.mktemp("dist"))


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_has_typed_packages_and_metadata(wheelhouse: Wheelhouse, name: str) -> None:
    project = tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with zipfile.ZipFile(wheelhouse.wheels[name]) as wheel:
        files = set(wheel.namelist())
        (metadata,) = (file for file in files if file.endswith(".dist-info/METADATA"))
        told = message_from_bytes(wheel.read(metadata))
    source = PROJECTS[name] / "src"
    shipped = {str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in (".py", ".typed")}
    assert shipped <= files
    assert any(file.endswith("py.typed") for file in files)
    assert not [file for file in files if "tests" in file.split("/")]
    assert (told["Version"], told["License-Expression"]) == (project["version"], "Apache-2.0")
    assert str(told.get_payload()).strip().startswith("#"), "the README is its description"


@pytest.mark.parametrize("name", PROJECTS)
def test_a_source_distribution_has_the_sources_of_its_wheel(wheelhouse: Wheelhouse, name: str) -> None:
    (path,) = wheelhouse.directory.glob(f"{name.replace('-', '_')}-[0-9]*.tar.gz")
    with tarfile.open(path) as archive:
        files = {file.partition("/")[2] for file in archive.getnames()}
    assert {"pyproject.toml", "README.md"} <= files
    assert any(file.startswith("src/") for file in files)


@pytest.mark.parametrize("command", NEEDED)
def test_a_command_from_its_wheel_prints_its_version(wheelhouse: Wheelhouse, tmp_path: Path, command: str) -> None:
    commands = wheelhouse.environment(tmp_path / "env", *NEEDED[command])
    version = wheelhouse.wheels[NEEDED[command][-1]].name.split("-")[1]
    assert run(commands / command, "--version", cwd=tmp_path).strip() == f"{command} {version}"
    assert "--version" in run(commands / command, "--help", cwd=tmp_path, environment={"COLUMNS": "200"})
    if command in ("smcp-gateway", "smcp-mcp", "smcp-registry"):
        assert "the configuration is valid" in run(commands / command, "--check-config", cwd=tmp_path)
    ours = {name for name in wheelhouse.installed(commands) if name.startswith("smcp")}
    assert ours == set(NEEDED[command])


async def test_an_agent_and_a_computer_from_wheels_work_with_a_running_system(
    wheelhouse: Wheelhouse, tmp_path: Path
) -> None:
    agent = wheelhouse.environment(tmp_path / "agent", *NEEDED["smcp-agent"])
    computer = wheelhouse.environment(tmp_path / "computer", *NEEDED["smcp-computer"])
    assert not {"nats-py", "mcp", "opentelemetry-sdk", "structlog", "uvloop"} & wheelhouse.installed(agent)
    place = Place("host-wheel", LAB, "wheel")
    config = tmp_path / "computer.json"
    config.write_text(json.dumps({"servers": {"toolbox": configs.stdio()}}), encoding="utf-8")
    assert "valid" in run(computer / "smcp-computer", "validate", config)
    async with open_processes(tmp_path, gateways=1, registries=1, places=(), known=[place]) as world:
        env = child_environment(
            world.mark,
            SMCP_NATS_URL=world.nats_url,
            SMCP_NATS_CREDS=str(world.credentials / f"{place.credential}.json"),
            SMCP_HEALTH_PORT=str(port := Ports().take()),
        )
        command = [str(computer / "smcp-computer"), "run", "--config", str(config), "--office", LAB, "--name", "wheel"]
        host = Process(place.credential, command, env, tmp_path, f"http://127.0.0.1:{port}/readyz")
        await host.start()
        try:
            asked = ("--url", world.url(), "--office", LAB)
            assert "wheel" in run(agent / "smcp-agent", *asked, "list")
            added = run(agent / "smcp-agent", *asked, "call", "wheel", "add", "--params", '{"a": 40, "b": 2}')
            assert "42" in added
        finally:
            assert await host.stop() == 0
