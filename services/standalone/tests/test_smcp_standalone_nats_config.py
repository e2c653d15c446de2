"""The file of offices and hosts, and what becomes of it on disk."""

import asyncio
import json
import re
import stat
import string
import subprocess
from pathlib import Path

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.member_names import check_name
from smcp_standalone import nats_server
from smcp_standalone.nats_config_file import NatsModel, parse_model
from smcp_standalone.nats_server import find_binary
from smcp_testing.certificates import Authority
from smcp_testing.nats_process import NatsServer

SMALL = """
offices: [lab, "北京 3.*.>"]
registries: [registry-1, registry-2]
gateways: [ga, gb]
computers:
  - {credential: rack-1, office: lab, names: [rack 1, rack 2]}
  - {credential: '上海 "1\\', office: "北京 3.*.>"}
"""


def check(conf: Path) -> subprocess.CompletedProcess[str]:
    """nats-server's own opinion of a configuration."""
    return subprocess.run([find_binary(), "-t", "-c", conf], check=False, capture_output=True, text=True)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_counts_and_names_become_credentials() -> None:
    model = parse_model(SMALL)
    assert list(nats_server.grants(model)) == ["registry-1", "registry-2", "ga", "gb", "rack-1", '上海 "1\\']


def test_a_computer_host_without_names_is_called_like_its_credential() -> None:
    assert parse_model("{offices: [a], computers: [{credential: c, office: a}]}").computers[0].computers == ["c"]


def test_a_computers_permissions_are_its_own_names_in_its_own_office() -> None:
    grant = nats_server.grants(parse_model(SMALL))["rack-1"]
    assert grant.publish == (
        "smcp.v1.lab.server.computer.rack=201.>",
        "smcp.v1.lab.server.computer.rack=202.>",
        "smcp.hosts.v1.rack-1.*.lease",
    )
    assert grant.subscribe == (
        "smcp.v1.lab.client.rack=201.> owner",
        "smcp.v1.lab.client.rack=202.> owner",
        "smcp.v1.lab.notify.>",
        "smcp.hosts.v1.rack-1.*.alive",
        "smcp.admin.v1.log_level",
        "_INBOX.rack-1.>",
    )
    assert grant.may_respond
    assert nats_server.RESPONSES >= 2 * 64
    assert nats_server.RESPONSE_EXPIRES_S > 3600


def test_nats_server_accepts_what_is_written(tmp_path: Path) -> None:
    written = nats_server.write(parse_model(SMALL), tmp_path)
    checked = check(written.conf)
    assert "is valid" in checked.stderr
    assert checked.returncode == 0


def test_nats_server_accepts_tls_for_clients_and_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "nats-0")
    authority = Authority(tmp_path / "ca")
    made = authority.certificate("nats-0")
    text = SMALL + "server_name: $POD_NAME\n"
    text += f"tls: {{cert: {made.cert}, key: {made.key}, ca: {authority.ca}}}\n"
    text += 'cluster: {name: c1, routes: ["nats-0:6222"]}\n'
    conf = nats_server.write(parse_model(text), tmp_path).conf
    checked = check(conf)
    assert "is valid" in checked.stderr, checked.stderr
    written = conf.read_text(encoding="utf-8")
    assert written.count(f'"cert_file": "{made.cert}"') == 2
    made.key.unlink()
    assert check(conf).returncode != 0


def test_nats_server_accepts_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "nats-0")
    text = SMALL + 'server_name: $POD_NAME\nhttp: "127.0.0.1:8222"\njetstream: {max_file: 1G}\n'
    text += 'cluster: {name: c1, routes: ["nats-0:6222", "nats-1:6222"]}\n'
    written = nats_server.write(parse_model(text), tmp_path)
    checked = check(written.conf)
    assert checked.returncode == 0, checked.stderr
    assert mode(tmp_path / "cluster-secret") == 0o600


async def test_clients_are_told_the_name_of_a_node_that_its_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_ADVERTISE", "nats-0.nats:4222")
    written = nats_server.write(parse_model("{offices: [lab], client_advertise: $NATS_ADVERTISE}"), tmp_path / "out")
    server = NatsServer(tmp_path / "nats", config=written.conf, jetstream=False)
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        info = json.loads((await asyncio.wait_for(reader.readline(), 30)).removeprefix(b"INFO "))
        writer.close()
        await writer.wait_closed()
    finally:
        await server.stop()
    assert (info["host"], info["port"]) == ("nats-0.nats", 4222)


async def test_a_client_that_is_not_heard_any_more_is_given_up_within_seconds(tmp_path: Path) -> None:
    written = nats_server.write(parse_model(SMALL), tmp_path)
    login = json.loads(written.credentials["ga"].read_text())
    server = NatsServer(tmp_path / "nats", config=written.conf, jetstream=False)
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await reader.readline()).startswith(b"INFO ")
        told = json.dumps({"user": login["name"], "pass": login["secret"], "verbose": False})
        writer.write(f"CONNECT {told}\r\nPING\r\n".encode())
        assert await reader.readline() == b"PONG\r\n"
        async with asyncio.timeout(5 * nats_server.PING_S * nats_server.PINGS):
            said = await reader.read()
        assert b"Stale Connection" in said
        writer.close()
        await writer.wait_closed()
    finally:
        await server.stop()


def test_secrets_are_private_and_only_hashed_in_the_configuration(tmp_path: Path) -> None:
    written = nats_server.write(parse_model(SMALL), tmp_path)
    conf = written.conf.read_text()
    assert mode(written.conf) == 0o600
    for name, path in written.credentials.items():
        assert mode(path) == 0o600
        content = json.loads(path.read_text())
        assert set(content) == {"name", "secret", "inbox_prefix"}
        assert content["name"] == name
        assert f'"{content["inbox_prefix"]}.>"' in conf
        assert content["secret"] not in conf
        assert nats_server.hash_secret(content["secret"]) in conf


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    nats_server.write(parse_model(SMALL), tmp_path)
    before = contents()
    nats_server.write(parse_model(SMALL), tmp_path)
    assert contents() == before


def test_a_credential_that_left_the_file_can_no_longer_log_in(tmp_path: Path) -> None:
    nats_server.write(parse_model(SMALL), tmp_path)
    written = nats_server.write(parse_model(SMALL.replace("[ga, gb]", "[ga]")), tmp_path)
    assert '"gb"' not in written.conf.read_text()


@given(st.text(alphabet=string.ascii_letters + string.digits + "-_", min_size=1, max_size=72))
def test_a_hash_is_stable_and_verifies(secret: str) -> None:
    hashed = nats_server.hash_secret(secret)
    assert hashed == nats_server.hash_secret(secret)
    assert bcrypt.checkpw(secret.encode(), hashed.encode())


def legal(name: str) -> bool:
    try:
        return check_name(name) == name
    except ValueError:
        return False


NAMES = st.text(min_size=1, max_size=10).filter(legal)


@pytest.mark.rule("answers.names.narrow")
@given(office=NAMES, computer=NAMES)
def test_no_name_widens_a_permission(office: str, computer: str) -> None:
    model = NatsModel.model_validate(
        {"offices": [office], "computers": [{"credential": "host", "office": office, "names": [computer]}]}
    )
    own = nats_server.grants(model)["host"]
    token = r"[A-Za-z0-9_=-]+"
    assert re.fullmatch(rf"smcp\.v1\.{token}\.server\.computer\.{token}\.>", own.publish[0])
    assert re.fullmatch(rf"smcp\.v1\.{token}\.client\.{token}\.> owner", own.subscribe[0])
    assert re.fullmatch(rf"smcp\.v1\.{token}\.notify\.>", own.subscribe[1])
