"""The file of offices and hosts, and what becomes of it on disk."""

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

from smcp_proto.names import check_name
from smcp_standalone import nats_config, nats_files
from smcp_standalone.nats_model import NatsConfigError, NatsModel, parse_model
from smcp_standalone.nats_server import find_binary

SMALL = """
offices: [lab, "北京 3.*.>"]
registries: 2
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
    assert list(nats_config.grants(model)) == ["registry-1", "registry-2", "ga", "gb", "rack-1", '上海 "1\\']


def test_a_computer_host_without_names_is_called_like_its_credential() -> None:
    assert parse_model("{offices: [a], computers: [{credential: c, office: a}]}").computers[0].computers == ["c"]


def test_a_computers_permissions_are_its_own_names_in_its_own_office() -> None:
    grant = nats_config.grants(parse_model(SMALL))["rack-1"]
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
        "_INBOX.rack-1.>",
    )
    assert grant.responses is not None
    assert grant.responses >= 2 * 64
    assert grant.responses_expire_s > 3600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("offices: [", "not YAML"),
        ("- a", "not a YAML mapping"),
        ("{}", "offices: is missing"),
        ("offices: kitchen", "offices: has to be a list, such as [a, b]"),
        ("{offices: [a], jetstream: 1}", "jetstream: has to be a mapping"),
        ("{offices: [a], gateways: x}", "gateways: has to be a whole number; or: has to be a list, such as [a, b]"),
        ("offices: []", "offices: has to name at least one"),
        ("offices: [7]", "offices.0: has to be a text"),
        ('offices: [""]', "offices.0: a name has 1 to 128 characters"),
        ("{offices: [a], gateway: 2}", "gateway: is no field of this file; did you mean 'gateways'?"),
        (
            "{offices: [a], computers: [{credential: c, office: a, name: [x]}]}",
            "computers.0.name: is no field of this file; did you mean 'names'?",
        ),
        (
            "{offices: [a], jetstream: {storedir: x}}",
            "jetstream.storedir: is no field of this file; did you mean 'store_dir'?",
        ),
        ("{offices: [a], xyzzy: 1}", "xyzzy: is no field of this file"),
        ("{offices: [a], gateways: 0}", "gateways: Input should be greater than or equal to 1"),
        ("{offices: [a], gateways: two}", "gateways: has to be a whole number"),
        ("{offices: [a], gateways: [g, '']}", "gateways.1: a name has 1 to 128 characters"),
        ("{offices: [a], gateways: [g, G]}", "two credentials are named 'G'"),
        ("{offices: [a], computers: [{credential: c}]}", "computers.0.office: is missing"),
        ("{offices: [a], computers: [{credential: c, office: b}]}", "computers.0.office: 'b' is not in offices"),
        ("{offices: [a], computers: [{credential: %s, office: a}]}" % ("雨" * 20), "computers.0.credential: "),
        (
            "{offices: [a], computers: [{credential: ../../evil, office: a}]}",
            "computers.0.credential: a credential is a",
        ),
        ("{offices: [a], gateways: [a, ..]}", "gateways.1: a credential is a file of this name: without '/'"),
        ("{offices: [a], listen: here}", "listen: not HOST:PORT"),
        ("{offices: [a], listen: 'h:99999'}", "listen: not HOST:PORT"),
        ("{offices: [a], cluster: {name: c}}", "server_name: each node"),
        ("{offices: [a], jetstream: {domain: 'a b'}}", "jetstream.domain: String should match"),
    ],
)
def test_a_wrong_field_is_named(text: str, said: str) -> None:
    with pytest.raises(NatsConfigError) as refused:
        parse_model(text)
    assert said in str(refused.value)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    with pytest.raises(NatsConfigError, match=r"hosts\.yaml: cannot be read"):
        nats_files.read_model(path)
    path.write_text("{}")
    with pytest.raises(NatsConfigError, match=r"hosts\.yaml: offices: is missing"):
        nats_files.read_model(path)


def test_nats_server_accepts_what_is_written(tmp_path: Path) -> None:
    written = nats_files.write(parse_model(SMALL), tmp_path)
    checked = check(written.conf)
    assert "is valid" in checked.stderr
    assert checked.returncode == 0


def test_nats_server_accepts_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "nats-0")
    text = SMALL + 'server_name: $POD_NAME\nhttp: "127.0.0.1:8222"\njetstream: {domain: hub, max_file: 1G}\n'
    text += 'cluster: {name: c1, routes: ["nats-0:6222", "nats-1:6222"]}\n'
    written = nats_files.write(parse_model(text), tmp_path)
    checked = check(written.conf)
    assert checked.returncode == 0, checked.stderr
    assert mode(tmp_path / "cluster-secret") == 0o600


def test_secrets_are_private_and_only_hashed_in_the_configuration(tmp_path: Path) -> None:
    written = nats_files.write(parse_model(SMALL), tmp_path)
    conf = written.conf.read_text()
    assert mode(written.conf) == 0o600
    for name, path in written.credentials.items():
        assert mode(path) == 0o600
        content = json.loads(path.read_text())
        assert {"name", "secret", "inbox_prefix", "kind"} <= set(content)
        assert content["name"] == name
        assert f'"{content["inbox_prefix"]}.>"' in conf
        assert content["secret"] not in conf
        assert nats_config.hash_secret(content["secret"]) in conf


def test_a_credential_says_what_it_is_for(tmp_path: Path) -> None:
    written = nats_files.write(parse_model(SMALL), tmp_path)

    def purpose(name: str) -> dict[str, object]:
        content = json.loads(written.credentials[name].read_text())
        return {field: value for field, value in content.items() if field not in {"name", "secret", "inbox_prefix"}}

    assert purpose("registry-1") == {"kind": "registry"}
    assert purpose("ga") == {"kind": "gateway"}
    assert purpose("rack-1") == {"kind": "computer", "office": "lab", "names": ["rack 1", "rack 2"]}


def test_a_credential_of_before_keeps_its_secret_and_is_told_what_it_is_for(tmp_path: Path) -> None:
    path = nats_files.write(parse_model(SMALL), tmp_path).credentials["rack-1"]
    content = json.loads(path.read_text())
    path.write_text(json.dumps({field: content[field] for field in ("name", "secret", "inbox_prefix")}))
    nats_files.write(parse_model(SMALL), tmp_path)
    assert json.loads(path.read_text()) == content


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    nats_files.write(parse_model(SMALL), tmp_path)
    before = contents()
    nats_files.write(parse_model(SMALL), tmp_path)
    assert contents() == before


def test_a_credential_that_left_the_file_is_named_and_can_no_longer_log_in(tmp_path: Path) -> None:
    nats_files.write(parse_model(SMALL), tmp_path)
    written = nats_files.write(parse_model(SMALL.replace("[ga, gb]", "[ga]")), tmp_path)
    assert [path.name for path in written.forgotten] == ["gb.json"]
    assert '"gb"' not in written.conf.read_text()


def test_a_damaged_credential_is_refused_and_not_replaced(tmp_path: Path) -> None:
    written = nats_files.write(parse_model(SMALL), tmp_path)
    written.credentials["ga"].write_text("{")
    with pytest.raises(NatsConfigError, match=r"ga\.json: not a credential file"):
        nats_files.write(parse_model(SMALL), tmp_path)
    written.credentials["ga"].write_text(written.credentials["gb"].read_text())
    with pytest.raises(NatsConfigError, match=r"ga\.json: not the credential of 'ga'"):
        nats_files.write(parse_model(SMALL), tmp_path)


@given(st.text(alphabet=string.ascii_letters + string.digits + "-_", min_size=1, max_size=72))
def test_a_hash_is_stable_and_verifies(secret: str) -> None:
    hashed = nats_config.hash_secret(secret)
    assert hashed == nats_config.hash_secret(secret)
    assert bcrypt.checkpw(secret.encode(), hashed.encode())


def legal(name: str) -> bool:
    try:
        return check_name(name) == name
    except ValueError:
        return False


NAMES = st.text(min_size=1, max_size=10).filter(legal)


@given(office=NAMES, computer=NAMES)
def test_no_name_widens_a_permission(office: str, computer: str) -> None:
    model = NatsModel.model_validate(
        {"offices": [office], "computers": [{"credential": "host", "office": office, "names": [computer]}]}
    )
    own = nats_config.grants(model)["host"]
    token = r"[A-Za-z0-9_=-]+"
    assert re.fullmatch(rf"smcp\.v1\.{token}\.server\.computer\.{token}\.>", own.publish[0])
    assert re.fullmatch(rf"smcp\.v1\.{token}\.client\.{token}\.> owner", own.subscribe[0])
    assert re.fullmatch(rf"smcp\.v1\.{token}\.notify\.>", own.subscribe[1])
