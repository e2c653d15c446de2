"""docker/compose.yaml and what it mounts, read as Compose, NATS, the Computer and haproxy read them."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from bench.demo import COMPUTER, OFFICE
from smcp_auth.client_addresses import read_networks
from smcp_computer.config.file import load_config
from smcp_computer.settings import ComputerSettings
from smcp_gateway.settings import GatewaySettings
from smcp_mcp.auth import METADATA
from smcp_mcp.settings import McpSettings, check_access
from smcp_service.settings import ServiceSettings, load_settings
from smcp_standalone.nats_server import read_model
from smcp_testing.waiting import eventually
from tests.e2e.worlds.engine import docker, require_engine
from tests.packaging.wheelhouse import ROOT

DOCKER: Final = ROOT / "docker"
FILE: Final = DOCKER / "compose.yaml"
SERVICES: Final[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
CORE: Final = {name for name, service in SERVICES.items() if service["profiles"] == ["core"]}


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_read_only_and_gain_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "pid", "ipc", "devices"} & service.keys()
    if name == "setup":  # hands files over to others, so it is root, without a network
        assert service["network_mode"] == "none"
    else:
        assert "cap_add" not in service
        assert service.get("user", "10001:10001") == "10001:10001"


@pytest.mark.parametrize("name", SERVICES)
def test_every_published_port_is_on_loopback(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_nats_monitoring_is_on_loopback_of_its_container() -> None:
    """MCP servers share a network with it."""
    assert read_model(DOCKER / "compose" / "offices.yaml").http == "127.0.0.1:8222"


def test_clients_reach_only_the_proxy_and_computers_share_no_network_with_gateways() -> None:
    def on(network: str) -> set[str]:
        return {name for name, service in SERVICES.items() if network in service.get("networks", [])}

    assert on("clients") == {"proxy", "demo"}
    assert on("gateways") == {"proxy", "gateway-1", "gateway-2", "mcp-1", "mcp-2"}
    assert on("observe") & CORE == {"mcp-1", "mcp-2"}
    assert on("hosts") & CORE == {"nats", "computer"}
    assert on("bus") & CORE == {"nats", "registry-1", "registry-2", "gateway-1", "gateway-2"}
    declared = yaml.safe_load(FILE.read_text(encoding="utf-8"))["networks"]
    for name, service in SERVICES.items():
        assert set(service.get("networks", [])) <= declared.keys()
        assert ("networks" in service) != ("network_mode" in service), f"{name} is on no network, or on the default one"


def test_gateways_believe_their_own_network_about_who_asks_and_no_other_one() -> None:
    networks = yaml.safe_load(FILE.read_text(encoding="utf-8"))["networks"]
    (subnet,) = (each["subnet"] for each in networks["gateways"]["ipam"]["config"])
    for name in ("gateway-1", "gateway-2"):
        assert SERVICES[name]["environment"]["SMCP_AUTH_PROXIES"] == subnet
    (network,) = read_networks(subnet.rpartition(":-")[2].rstrip("}"))
    assert network.num_addresses <= 16


def test_the_grace_period_is_longer_than_the_drain() -> None:
    settings: dict[str, type[ServiceSettings]] = {
        "gateway-1": GatewaySettings,
        "gateway-2": GatewaySettings,
        "mcp-1": McpSettings,
        "mcp-2": McpSettings,
        "computer": ComputerSettings,
    }
    for name, of in settings.items():
        drain_s = of.model_fields["drain_s"].default
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain_s


def test_each_process_mounts_only_the_credentials_of_its_kind() -> None:
    model = read_model(DOCKER / "compose" / "offices.yaml")
    (host,) = model.computers
    known = {*model.registries, *model.gateways, *model.operators, host.credential}
    given = {
        name: Path(service["environment"]["SMCP_NATS_CREDS"]).stem
        for name, service in SERVICES.items()
        if "SMCP_NATS_CREDS" in service.get("environment", {})
    }
    assert set(given.values()) == known
    assert len(given) == len(known)
    for name in given:
        (volume,) = (mount for mount in SERVICES[name]["volumes"] if mount.endswith(":/run/smcp:ro"))
        kinds = {"registry": "registries", "gateway": "gateways", "computer": "computer", "operator": "operators"}
        kind = kinds[name.partition("-")[0]]
        assert volume == f"{kind}:/run/smcp:ro"


def test_smcp_mcp_takes_its_settings_and_requires_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    for name in ("mcp-1", "mcp-2"):
        environment = SERVICES[name]["environment"]
        assert environment["SMCP_AUTH_KEYS"] == "/run/smcp/keys.json"
        subnet = environment["SMCP_AUTH_PROXIES"].rpartition(":-")[2].rstrip("}")
        for variable, value in (environment | {"SMCP_AUTH_KEYS": str(keys), "SMCP_AUTH_PROXIES": subnet}).items():
            monkeypatch.setenv(variable, value)
        settings = load_settings(McpSettings)
        check_access(settings)
        peers = {f"http://{peer}:{settings.mcp_port}" for peer in ("mcp-1", "mcp-2")}
        assert set(settings.mcp_peers.split(",")) == peers
        assert set(settings.url.split(",")) == {"http://gateway-1:8000", "http://gateway-2:8000"}


def test_gateways_require_a_key_that_only_the_demo_has() -> None:
    for name in ("gateway-1", "gateway-2"):
        environment = SERVICES[name]["environment"]
        assert environment["SMCP_AUTH_KEYS"] == "/run/smcp/keys.json"
        assert "SMCP_INSECURE" not in environment
    holders = {
        name for name, service in SERVICES.items() if any("agents:" in each for each in service.get("volumes", []))
    }
    assert holders == {"setup", "demo"}


def test_the_demo_uses_the_configured_office_computer_and_tools() -> None:
    model = read_model(DOCKER / "compose" / "offices.yaml")
    (host,) = model.computers
    environment = SERVICES["computer"]["environment"]
    assert (host.office, *host.names) == (OFFICE, COMPUTER)
    assert (environment["SMCP_OFFICE"], environment["SMCP_NAME"]) == (OFFICE, COMPUTER)
    assert SERVICES["demo"]["environment"]["SMCP_OFFICE"] == OFFICE
    assert SERVICES["demo"]["command"][0].count(f"smcp-agent call '{COMPUTER}' ") == 2
    assert set(load_config(DOCKER / "compose" / "computer.json").servers) == {"git", "time"}


def test_the_collector_defines_what_its_pipelines_use() -> None:
    told = yaml.safe_load((DOCKER / "compose" / "collector.yaml").read_text(encoding="utf-8"))
    for pipeline in told["service"]["pipelines"].values():
        assert set(pipeline["receivers"]) <= {*told["receivers"], *told["connectors"]}
        assert set(pipeline["processors"]) <= told["processors"].keys()
        assert set(pipeline["exporters"]) <= {*told["exporters"], *told["connectors"]}
    (target,) = scraped()["collector"]
    assert target.partition(":")[2] == told["exporters"]["prometheus"]["endpoint"].partition(":")[2]


def scraped() -> dict[str, list[str]]:
    """Whom Prometheus asks, by job."""
    told = yaml.safe_load((ROOT / "deploy" / "observe" / "prometheus-compose.yaml").read_text(encoding="utf-8"))
    return {
        job["job_name"]: [to for each in job["static_configs"] for to in each["targets"]]
        for job in told["scrape_configs"]
    }


def test_prometheus_scrapes_every_process() -> None:
    ports = {"gateway": 8080, "mcp": 8080, "registry": 8080, "computer": 8080}
    ours = {name: ports[name.partition("-")[0]] for name in CORE if name.partition("-")[0] in ports}
    asked = [target for job, targets in scraped().items() if job != "collector" for target in targets]
    assert sorted(asked) == sorted(f"{name}:{port}" for name, port in ours.items())


def test_the_proxy_forwards_socketio_and_mcp_and_no_metrics() -> None:
    lines = [line.strip() for line in (DOCKER / "compose" / "haproxy.cfg").read_text(encoding="utf-8").splitlines()]
    paths = lines.index(f"acl mcp path_beg /mcp/ {METADATA}/")
    kept = lines.index("http-request return status 404 unless mcp or { path_beg /socket.io/ }")
    assert lines.index("bind :8000") < paths < kept < lines.index("use_backend mcp if mcp")


@pytest.fixture(scope="module")
def proxy() -> Iterator[str]:
    """Its address; no gateway is behind it."""
    require_engine()
    image = subprocess.check_output([DOCKER / "image.sh", "haproxy:2.8", "debian"], text=True).strip()
    mounts = [f"--volume={DOCKER}/{each.removeprefix('./')}" for each in SERVICES["proxy"]["volumes"]]
    options = ("--detach", "--rm", "--label=smcp.e2e", "--publish=127.0.0.1::8000")
    container = docker("run", *options, *mounts, image, *SERVICES["proxy"]["command"])
    try:
        yield docker("port", container, "8000")
    finally:
        docker("kill", container)


@pytest.mark.timeout(600)
async def test_haproxy_accepts_its_configuration_and_serves_only_socketio_and_mcp(proxy: str) -> None:
    async def listens() -> bool:
        return (
            await asyncio.to_thread(status, proxy, "/socket.io/?EIO=4&transport=polling") == 503
        )  # no gateway is there

    await eventually(listens, timeout=60)
    for path in ("/mcp/office", f"{METADATA}/mcp/office"):
        assert await asyncio.to_thread(status, proxy, path) == 503, path
    for path in ("/metrics", "/%6detrics", "//metrics", "/readyz", "/"):
        assert await asyncio.to_thread(status, proxy, path) == 404, path


def status(address: str, path: str) -> int:
    """Of what is asked for with the path as it stands here; 0: nobody answered."""
    connection = HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("profiles", [("core",), ("core", "observe"), ("demo",), ("operator",)], ids="+".join)
def test_docker_compose_accepts_every_profile(profiles: tuple[str, ...]) -> None:
    require_engine()
    options = [part for profile in profiles for part in ("--profile", profile)]
    told = subprocess.run(
        [DOCKER / "compose.sh", *options, "config", "--format", "json"], check=False, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    wanted = {name for name, service in SERVICES.items() if set(service["profiles"]) & set(profiles)}
    assert set(json.loads(told.stdout)["services"]) == wanted
