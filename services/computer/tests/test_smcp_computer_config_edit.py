"""Changing the servers in a configuration file: what is written, and what is refused."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from smcp_computer.config.lint import ConfigError
from smcp_computer.config_commands import Action, edit_file, edited
from smcp_service.lifecycle import Failure

BOX: dict[str, Any] = {"type": "stdio", "server_parameters": {"command": "true"}}
OURS = json.dumps({"servers": {"box": BOX}, "inputs": []}, indent=4)


@pytest.mark.parametrize(
    "written", [OURS, json.dumps({"mcpServers": {"box": {"command": "true"}}}), json.dumps({"box": BOX})]
)
def test_a_server_is_added_disabled_enabled_and_removed_where_the_file_has_its_servers(written: str) -> None:
    before = json.loads(written)
    key = next((key for key in ("servers", "mcpServers") if key in before), None)

    def servers(document: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = document if key is None else document[key]
        return found

    found = edited(written, "add", "new", BOX)
    assert list(servers(found)) == ["box", "new"]
    found = edited(json.dumps(found), "disable", "box")
    assert servers(found)["box"]["disabled"] is True
    found = edited(json.dumps(found), "enable", "box")
    assert edited(json.dumps(found), "remove", "new") == before


@pytest.mark.parametrize("off", [{"enabled": False}, {"isActive": False}, {"enabled": False, "disabled": True}])
def test_a_server_that_the_file_of_another_host_switches_off_is_enabled(off: dict[str, Any]) -> None:
    written = {"mcpServers": {"box": {"command": "true", **off}}}
    found = edited(json.dumps(written), "enable", "box")
    assert found == {"mcpServers": {"box": {"command": "true"}}}


def test_a_file_without_servers_gets_them() -> None:
    assert edited("{}", "add", "new", BOX) == {"servers": {"new": BOX}}


@pytest.mark.parametrize(
    ("action", "name", "why"),
    [
        ("add", "box", "there is a server 'box' already"),
        ("remove", "bxo", "there is no server 'bxo'; did you mean 'box'"),
        ("disable", "servers", "there is no server 'servers'"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(action: Action, name: str, why: str) -> None:
    with pytest.raises(Failure, match=why):
        edited(OURS, action, name, BOX)


@pytest.mark.parametrize(("name", "server", "why"), [("new", {"type": "pipe"}, "servers.new"), ("a\nb", BOX, "name")])
def test_a_change_that_leaves_an_invalid_file_is_refused(
    tmp_path: Path, name: str, server: dict[str, Any], why: str
) -> None:
    file = tmp_path / "c.json"
    file.write_text(OURS)
    with pytest.raises(ConfigError, match=why):
        edit_file(file, "add", name, server)
    assert file.read_text() == OURS


def test_a_server_is_replaced_where_that_is_said() -> None:
    other = {**BOX, "server_parameters": {"command": "false"}}
    assert edited(OURS, "replace", "box", other)["servers"] == {"box": other}


def test_a_file_with_comments_is_not_changed() -> None:
    commented = OURS.replace("{", "{ // why\n", 1)
    with pytest.raises(ConfigError, match="comments"):
        edited(commented, "add", "new", BOX)


def test_a_file_is_replaced_as_a_whole_behind_its_link_and_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text(OURS)
    real.chmod(0o640)
    link.symlink_to(real)
    before = real.stat().st_ino
    edit_file(link, "add", "new", BOX)
    assert link.is_symlink()
    assert "new" in json.loads(real.read_text())["servers"]
    assert (real.stat().st_mode & 0o777, real.stat().st_ino != before) == (0o640, True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "real.json"]


def test_a_file_that_cannot_be_written_is_named_with_its_directory_and_the_reason(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=r"c\.json: cannot be written in .*/missing: No such file"):
        edit_file(missing / "c.json", "add", "new", BOX)


def test_a_file_that_is_refused_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    with pytest.raises(ConfigError, match="No such file"):
        edit_file(file, "remove", "box")
    file.write_text("{oops")
    with pytest.raises(ConfigError, match=r"c\.json: not JSON"):
        edit_file(file, "add", "new", BOX)
    assert file.read_text() == "{oops"
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not JSON: not UTF-8 text"):
        edit_file(file, "add", "new", BOX)


def test_changes_at_once_are_all_made(tmp_path: Path) -> None:
    file, names = tmp_path / "c.json", [f"box-{number}" for number in range(8)]
    file.write_text(OURS)
    begin = Barrier(len(names))

    def change(name: str) -> None:
        begin.wait(10)
        edit_file(file, "add", name, BOX)

    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(change, names))
    assert set(json.loads(file.read_text())["servers"]) == {"box", *names}
