"""The file that `smcp nats-config` writes."""

import json
from pathlib import Path

import pytest

from smcp_bus.nats.config import Credentials, configured_credentials, load_credentials, renewed
from smcp_service.files import UnusableFile
from smcp_service.settings import SettingsError

GOOD = {"name": "host-1", "secret": "s3cret", "inbox_prefix": "_INBOX.host-1"}


def test_a_good_file_is_read_and_its_secret_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "creds.json"
    file.write_text(json.dumps({**GOOD, "more": 1}))
    credentials = load_credentials(file)
    assert credentials == Credentials("host-1", "s3cret", "_INBOX.host-1")
    assert "s3cret" not in repr(credentials)


@pytest.mark.parametrize("field", ["name", "secret", "inbox_prefix"])
@pytest.mark.parametrize("value", [None, "", 5, ["x"]])
def test_a_bad_field_of_a_credential_is_named_without_the_secret(tmp_path: Path, field: str, value: object) -> None:
    file = tmp_path / "creds.json"
    file.write_text(json.dumps({**GOOD, field: value}))
    with pytest.raises(UnusableFile, match=f"field '{field}'") as told:
        load_credentials(file)
    assert str(file) in str(told.value)
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_credential_file_that_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "creds.json"
    file.write_bytes(content)
    with pytest.raises(UnusableFile, match=r"creds\.json: is not a JSON object"):
        load_credentials(file)


def test_a_configured_file_that_cannot_be_used_is_named_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"SMCP_NATS_CREDS: .*none\.json: cannot be read"):
        configured_credentials(tmp_path / "none.json")


def test_the_user_name_defaults_to_the_credentials_name(tmp_path: Path) -> None:
    file = tmp_path / "creds.json"
    file.write_text(json.dumps(GOOD))
    credentials = load_credentials(file)
    assert credentials.login == GOOD["name"]
    file.write_text(json.dumps({**GOOD, "user": "host-1/2", "secret": "new"}))
    now = renewed(credentials)
    assert (now.name, now.login, now.secret) == (GOOD["name"], "host-1/2", "new")
    file.write_text(json.dumps({**GOOD, "user": 2}))
    with pytest.raises(UnusableFile, match="field 'user'"):
        load_credentials(file)


@pytest.mark.parametrize("prefix", ["a b", "a.*", ">", "a..b", ".a", "a."])
def test_an_inbox_prefix_that_is_no_subject_is_refused(tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "creds.json"
    file.write_text(json.dumps({**GOOD, "inbox_prefix": prefix}))
    with pytest.raises(UnusableFile, match="inbox_prefix"):
        load_credentials(file)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\xff"])
def test_a_credential_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "creds.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UnusableFile, match="JSON"):
        load_credentials(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="cannot be read"):
        load_credentials(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        ({**GOOD, "secret": "new"}, "new"),
        ({**GOOD, "secret": "new", "name": "host-2"}, "s3cret"),
        ({**GOOD, "secret": "new", "inbox_prefix": "_INBOX.host-2"}, "s3cret"),
        ({**GOOD, "secret": ""}, "s3cret"),
        (None, "s3cret"),
    ],
    ids=["the same", "another name", "another inbox", "none", "no file"],
)
def test_a_new_secret_is_taken_from_the_file_while_that_is_for_the_same_process(
    tmp_path: Path, content: dict[str, str] | None, secret: str
) -> None:
    file = tmp_path / "creds.json"
    file.write_text(json.dumps(GOOD))
    credentials = load_credentials(file)
    file.unlink()
    if content is not None:
        file.write_text(json.dumps(content))
    assert renewed(credentials).secret == secret
    assert renewed(credentials).name == "host-1"
