"""`smcp nats-config --renew`: for a time nats-server takes the former secret of a credential and the new one."""

import json
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from smcp_bus.nats.config import Credentials, load_credentials
from smcp_standalone import nats_server_conf
from smcp_standalone.nats_config_file import NatsConfigError, parse_model
from smcp_standalone.nats_server_conf import Written

MODEL = parse_model("{offices: [lab], gateways: [ga, gb], computers: [{credential: rack 1, office: lab}]}")


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def taken(written: Written, credentials: Credentials) -> bool:
    """Whether nats-server's configuration has that user with that secret, and no second one of its name."""
    hashes = [user["password"] for user in users(written) if user["user"] == credentials.login]
    assert len(hashes) <= 1
    return any(bcrypt.checkpw(credentials.secret.encode(), known.encode()) for known in hashes)


def users(written: Written) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(written.conf.read_text().partition("authorization: ")[2])["users"]
    return found


def test_both_secrets_are_taken_until_the_former_is_retired(tmp_path: Path) -> None:
    written = nats_server_conf.write(MODEL, tmp_path)
    first = {name: load_credentials(path) for name, path in written.credentials.items()}
    for turn in range(3):
        before = {name: load_credentials(path) for name, path in written.credentials.items()}
        written = nats_server_conf.write(MODEL, tmp_path, renew=["ga", "rack 1"])
        now = {name: load_credentials(path) for name, path in written.credentials.items()}
        assert written.former == ("ga", "rack 1"), turn
        for name in ("ga", "rack 1"):
            assert now[name].secret != before[name].secret
            assert (now[name].name, now[name].inbox_prefix) == (name, before[name].inbox_prefix)
            assert taken(written, now[name])
            assert taken(written, before[name])
        assert now["gb"] == first["gb"]
        renewed = contents(tmp_path)
        nats_server_conf.write(MODEL, tmp_path)
        assert contents(tmp_path) == renewed, "a run without a word changes nothing"
        written = nats_server_conf.write(MODEL, tmp_path, retire=True)
        assert written.former == ()
        for name in ("ga", "rack 1"):
            assert taken(written, now[name])
            assert not taken(written, before[name])
        assert before["ga"].secret not in "".join(str(content) for content in contents(tmp_path).values())


def test_both_have_the_same_permissions(tmp_path: Path) -> None:
    text = nats_server_conf.write(MODEL, tmp_path, renew=["ga"]).conf.read_text()
    assert '"ga/2"' not in text, "nothing was there that could be kept"
    written = nats_server_conf.write(MODEL, tmp_path, renew=["ga"])
    permissions = {user["user"]: user["permissions"] for user in users(written)}
    assert permissions["ga"] == permissions["ga/2"]
    assert permissions["ga"] != permissions["gb"]


def test_a_second_renewal_before_the_first_is_over_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    nats_server_conf.write(MODEL, tmp_path)
    nats_server_conf.write(MODEL, tmp_path, renew=["ga"])
    before = contents(tmp_path)
    with pytest.raises(NatsConfigError, match="--renew ga: its previous secret is still accepted: run --retire first"):
        nats_server_conf.write(MODEL, tmp_path, renew=["gb", "ga"])
    with pytest.raises(NatsConfigError, match="--renew gc: there is no such credential in the file"):
        nats_server_conf.write(MODEL, tmp_path, renew=["gc"])
    assert contents(tmp_path) == before


def test_a_lost_file_gets_a_secret_beside_the_former_one(tmp_path: Path) -> None:
    nats_server_conf.write(MODEL, tmp_path)
    written = nats_server_conf.write(MODEL, tmp_path, renew=["ga"])
    lost = load_credentials(written.credentials["ga"])
    written.credentials["ga"].unlink()
    written = nats_server_conf.write(MODEL, tmp_path)
    assert taken(written, load_credentials(written.credentials["ga"]))
    assert not taken(written, lost)
    assert written.former == ("ga",)


def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    nats_server_conf.write(MODEL, tmp_path)
    nats_server_conf.write(MODEL, tmp_path, renew=["rack 1"])
    former = tmp_path / "former" / "rack=201.json"
    assert former.stat().st_mode & 0o777 == 0o600
    assert former.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(former.read_text())["name"] == "rack 1"
    without = parse_model("{offices: [lab], gateways: [ga, gb]}")
    nats_server_conf.write(without, tmp_path)
    assert not former.exists(), "nobody of that name is in the file any more"


def test_the_user_of_a_credential_cannot_be_anothers(tmp_path: Path) -> None:
    path = nats_server_conf.write(MODEL, tmp_path).credentials["ga"]
    path.write_text(json.dumps({**json.loads(path.read_text()), "user": "gb"}))
    with pytest.raises(NatsConfigError, match="not the credential of 'ga'"):
        nats_server_conf.write(MODEL, tmp_path)
