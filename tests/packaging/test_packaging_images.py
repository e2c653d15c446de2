"""The images: what is in them and what is not, as whom they run, and how they say that they cannot work."""

import json
import re
import sys
from importlib.metadata import version
from typing import Any, Final

import pytest

from tests.e2e.worlds.engine import docker, image, require_engine
from tests.packaging.wheelhouse import ROOT, run

COMMANDS: Final = {
    "smcp-gateway": "smcp-gateway",
    "smcp-registry": "smcp-registry",
    "smcp": "smcp-standalone",
    "smcp-computer": "smcp-computer",
    "smcp-computer-demo": "smcp-computer",
}
"""The image, and the distribution whose command it runs."""
SERVING: Final = ("smcp-gateway", "smcp-registry", "smcp-computer", "smcp-computer-demo")
BUILD_TOOLS: Final = ("cc", "gcc", "g++", "ld", "make", "cmake", "cargo", "dpkg-buildpackage")
HARDENED: Final = ("--rm", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true")

pytestmark = pytest.mark.usefixtures("_engine")


@pytest.fixture(scope="module")
def _engine() -> None:
    require_engine()


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(docker("image", "inspect", "--format", "{{json .Config}}", image(name)))
    return config


def ran(name: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    return docker("run", *HARDENED, "--network", "none", *options, image(name), *arguments)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_unprivileged_on_a_read_only_file_system(name: str) -> None:
    distribution = COMMANDS[name]
    command = "smcp" if distribution == "smcp-standalone" else distribution
    assert ran(name, "--version") == f"{command} {version(distribution)}"
    assert ran(name, "-u", options=("--entrypoint", "id")) == "10001"
    assert config_of(name)["User"] == "10001:10001"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_image_has_no_build_tools(name: str) -> None:
    look = f"for tool in {' '.join(BUILD_TOOLS)}; do command -v $tool; done; command -v sh"
    found = ran(name, "-c", look, options=("--entrypoint", "/bin/sh")).splitlines()
    assert [path.rpartition("/")[2] for path in found] == ["sh"]


@pytest.mark.parametrize("name", SERVING)
def test_an_image_has_a_health_check(name: str) -> None:
    assert config_of(name)["Healthcheck"]["Test"][0] == "CMD"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_image_has_the_locked_package_versions(name: str) -> None:
    program = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    there = ran(name, "-I", "-c", program, options=("--entrypoint", "/opt/smcp/bin/python")).splitlines()
    pinned = set(re.findall(r"^([A-Za-z0-9._-]+==[^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    others = {normal(each) for each in there if not each.startswith("smcp-")}
    assert others, there
    assert others <= {normal(each) for each in pinned}


def test_gateway_and_registry_images_have_no_mcp_sdk_and_no_nats_server() -> None:
    for name in ("smcp-gateway", "smcp-registry"):
        listed = ran(name, "-c", "ls /opt/smcp/bin /opt/smcp/lib/python*/site-packages", options=("--entrypoint", "sh"))
        assert "smcp_gateway" in listed
        assert not {"mcp", "nats-server", "smcp_computer"} & set(listed.split())


@pytest.mark.parametrize(
    ("name", "variable"), [("smcp-gateway", "SMCP_GATEWAY_PORT"), ("smcp-registry", "SMCP_LEASE_S")]
)
def test_a_container_names_a_wrong_environment_value_and_does_not_start(name: str, variable: str) -> None:
    with pytest.raises(AssertionError, match=rf"error: {variable}: input should be a valid"):
        ran(name, "--check-config", options=("--env", f"{variable}=soon"))


@pytest.mark.parametrize("arguments", [(), ("--check-config",)], ids=["run", "check"])
def test_a_gateway_container_without_authentication_does_not_start(arguments: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match=r"SMCP_GATEWAY_HOST: '0\.0\.0\.0' can be reached"):
        ran("smcp-gateway", *arguments)
    lock = ("--env", f"SMCP_AUTH_SECRET={'s' * 43}", "--env", "SMCP_AUTH_AUDIENCE=rooms")
    assert "SMCP_GATEWAY_HOST=0.0.0.0" in ran("smcp-gateway", "--check-config", options=lock)


def test_uvx_uses_the_python_of_the_image() -> None:
    found = ran("smcp-computer", "python", "find", options=("--entrypoint", "uv", "--tmpfs", "/var/lib/smcp:uid=10001"))
    assert found.endswith("/python3") or "/python3." in found
    assert "/opt/smcp" not in found
    with pytest.raises(AssertionError, match=r"No interpreter found|downloads"):
        ran(
            "smcp-computer",
            "python",
            "find",
            "3.9",
            options=("--entrypoint", "uv", "--tmpfs", "/var/lib/smcp:uid=10001"),
        )


def normal(pinned: str) -> str:
    name, _, number = pinned.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={number}"


def test_the_health_check_exits_with_1_when_nothing_listens() -> None:
    script = ROOT / "docker" / "healthcheck.py"
    with pytest.raises(AssertionError, match="ended with 1"):
        run(sys.executable, "-I", "-S", script, "PORT", environment={"PORT": "1"})
