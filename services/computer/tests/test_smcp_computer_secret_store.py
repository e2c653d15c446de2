"""What is kept encrypted on a host, and the commands that change it."""

import asyncio
import json
import os
import stat
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked

from smcp_computer.config.file import load_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.secret_store import SecretsError, SecretStore
from smcp_computer.config_commands import edit_file
from smcp_proto.schemas.config import MCPServerStdioConfig
from smcp_service.lifecycle import Failure
from smcp_testing.fork_server import COMMANDS, born

COMMAND = str(Path(sys.executable).with_name("smcp-computer"))
SECRET = "canary-4711"


def contents(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir())


@pytest.mark.rule("computer.security.encryption")
def test_values_are_kept_encrypted_in_files_of_the_user_alone(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "state")
    store.put("token", SECRET)
    store.put("other", "x")
    assert SecretStore(tmp_path / "state").read() == {"token": SECRET, "other": "x"}
    assert SECRET.encode() not in contents(tmp_path / "state")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert store.remove("token")
    assert not store.remove("token")
    assert store.read() == {"other": "x"}


def test_the_key_is_in_the_file_that_the_setting_names(tmp_path: Path) -> None:
    key = tmp_path / "mounted"
    key.write_text("k" * 32)
    store = SecretStore(tmp_path / "state", key)
    store.put("token", SECRET)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["secrets"]
    assert store.read() == {"token": SECRET}
    with pytest.raises(SecretsError, match="SMCP_SECRET_KEY_FILE does not say its key"):
        SecretStore(tmp_path / "state").read()
    key.write_text("K" * 32)
    with pytest.raises(SecretsError, match="secrets: cannot be decrypted: it is of another key, or was changed"):
        store.read()
    key.write_text("short")
    with pytest.raises(SecretsError, match="mounted is not a key"):
        store.read()


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    SecretStore(tmp_path).put("token", SECRET)
    (tmp_path / "secrets.key").chmod(0o644)
    with pytest.raises(SecretsError, match=r"secrets\.key can be read by others"):
        SecretStore(tmp_path).read()


class Memory(KeyringBackend):
    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise KeyringLocked
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


@pytest.fixture
def memory() -> Iterator[Memory]:
    before = keyring.get_keyring()
    keyring.set_keyring(backend := Memory())
    yield backend
    keyring.set_keyring(before)


def test_the_key_is_in_the_keyring_of_the_system_where_there_is_one(tmp_path: Path, memory: Memory) -> None:
    store = SecretStore(tmp_path)
    store.put("token", SECRET)
    assert [path.name for path in tmp_path.iterdir()] == ["secrets"]
    assert list(memory.entries) == [("a2c-smcp", str(tmp_path))]
    assert SecretStore(tmp_path).read() == {"token": SECRET}
    memory.locked = True
    for use in (store.read, lambda: store.put("a", "b")):
        with pytest.raises(SecretsError, match="the keyring of the system is locked"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["secrets"]  # and no new key was made


def test_a_value_is_read_again_after_the_key_file_was_set_and_after_the_keyring_came_back(
    tmp_path: Path, memory: Memory
) -> None:
    SecretStore(tmp_path).put("token", SECRET)
    key = tmp_path / "mounted"
    key.write_text("k" * 32)
    moved = SecretStore(tmp_path, key)
    assert moved.read() == {"token": SECRET}
    moved.put("other", "x")
    memory.locked = True
    assert moved.read() == {"token": SECRET, "other": "x"}


@pytest.mark.parametrize("damage", [b"", b"x", b"a2c-smcp-encrypted:nowhere:x", b"a2c-smcp-encrypted:file:x"])
def test_a_damaged_file_is_an_error(tmp_path: Path, damage: bytes) -> None:
    SecretStore(tmp_path).put("token", SECRET)
    (tmp_path / "secrets").write_bytes(damage)
    with pytest.raises(SecretsError, match="secrets: "):
        SecretStore(tmp_path).read()


def test_what_is_sealed_is_opened_with_the_key_of_the_same_directory_alone(tmp_path: Path) -> None:
    sealed = SecretStore(tmp_path / "a").seal(b"plain")
    assert b"plain" not in sealed
    assert SecretStore(tmp_path / "a").unseal(sealed) == b"plain"
    with pytest.raises(SecretsError):
        SecretStore(tmp_path / "b").unseal(sealed)


async def secrets(home: Path, *arguments: str, typed: str = "") -> tuple[int | None, str, str]:
    whose = {} if arguments[0] in ("encrypt", "decrypt") else {"SMCP_OFFICE": "home", "SMCP_NAME": "laptop"}
    process = await asyncio.create_subprocess_exec(
        *born(COMMAND, "secrets", *arguments, knows=COMMANDS),
        stdin=PIPE, stdout=PIPE, stderr=PIPE,
        env={"PATH": os.environ["PATH"], "PYTHON_KEYRING_BACKEND": os.environ["PYTHON_KEYRING_BACKEND"],
             "XDG_STATE_HOME": str(home), **whose},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(typed.encode()), 60)
    return process.returncode, out.decode(), err.decode()


async def test_the_commands_set_list_and_remove_values_and_never_show_them(tmp_path: Path) -> None:
    code, out, err = await secrets(tmp_path, "set", "api key", typed=f"{SECRET}\n")
    assert (code, out) == (0, "")
    assert "kept 'api key'" in err
    assert SECRET not in err
    assert await secrets(tmp_path, "list") == (0, "api key\n", "")
    code, out, _ = await secrets(tmp_path, "list", "--json")
    assert json.loads(out) == ["api key"]
    code, out, err = await secrets(tmp_path, "set", "token", "--json", typed=SECRET)
    assert (json.loads(out), err) == ({"kept": "token"}, "")
    assert json.loads((await secrets(tmp_path, "rm", "token", "--json"))[1]) == {"removed": ["token"]}
    assert await secrets(tmp_path, "rm", "api key", "other") == (1, "", "error: no value is kept for 'other'\n")
    assert await secrets(tmp_path, "list", "--json") == (0, "[]\n", "")
    assert await secrets(tmp_path, "list") == (0, "", "No secrets.\n")
    code, _, err = await secrets(tmp_path, "set", "x", typed="\n")
    assert (code, err) == (1, "error: nothing is kept: the value is empty\n")


@pytest.mark.rule("computer.security.encryption")
async def test_an_encrypted_configuration_is_read_as_before_and_not_written_as_plain_text(tmp_path: Path) -> None:
    target, file = tmp_path / "target.json", tmp_path / "computer.json"
    file.symlink_to(target)
    file.write_text(json.dumps({"mcpServers": {"x": {"command": "true", "env": {"TOKEN": SECRET}}}}))
    code, out, _ = await secrets(tmp_path, "encrypt", str(file), "--json")
    assert (code, json.loads(out)) == (0, {"encrypted": str(file)})
    assert file.is_symlink()
    assert SECRET.encode() not in target.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    server = load_config(file).servers["x"]
    assert isinstance(server, MCPServerStdioConfig)
    assert server.server_parameters.env == {"TOKEN": SECRET}
    with pytest.raises(Failure, match="is encrypted"):
        edit_file(file, "disable", "x")
    code, _, err = await secrets(tmp_path, "encrypt", str(file))
    assert (code, err) == (1, f"error: {file} is encrypted already\n")
    key = tmp_path / "a2c-smcp" / "secrets.key"
    key.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match=r"computer\.json: cannot be decrypted: .*secrets\.key does not exist"):
        load_config(file)
    (tmp_path / "away").rename(key)
    code, out, err = await secrets(tmp_path, "decrypt", str(file))
    assert (code, out, err) == (0, "", f"{file} is plain text again, which its user alone can read\n")
    assert await secrets(tmp_path, "encrypt", str(file)) == (0, "", f"{file} is encrypted\n")
    code, out, _ = await secrets(tmp_path, "decrypt", str(file), "--json")
    assert (code, json.loads(out)) == (0, {"decrypted": str(file)})
    assert SECRET in file.read_text()
