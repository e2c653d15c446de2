"""`smcp-computer install`: what it shows, what it writes, and what it leaves alone."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from smcp_computer.config.secret_store import seal_file
from smcp_computer.main import UNIT, app, environment_text
from smcp_service.settings import SettingsError

PLACE = ("--office", "lab 1", "--name", "robot", "--gateway", "https://gateway.example")


@pytest.fixture(autouse=True)
def system_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may run in a clone below /home, which the service does not see."""
    monkeypatch.setattr("sys.executable", "/opt/smcp/bin/python3")
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/opt/smcp/bin/smcp-computer")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "c.json"
    file.write_text('{"servers": {}}')
    return file


def install(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["install", "--config", str(config), *(arguments or PLACE)])


def test_the_unit_starts_the_command_that_wrote_it(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    shown = install(config)
    (start,) = (line for line in shown.stdout.splitlines() if line.startswith("ExecStart="))
    program, run = start.removeprefix("ExecStart=").split()
    assert (Path(program).is_file(), Path(program).name, run) == (True, "smcp-computer", "run")


@pytest.mark.parametrize("place", ["/home", "/root", "/tmp/bin"])
def test_a_command_that_the_service_does_not_see_is_not_installed(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: f"{place}/smcp-computer")
    why = f"the service does not see {place}/smcp-computer: install into /opt/smcp (docs/operations.md)"
    assert install(config).stderr == f"warning: {why}\n"
    refused = install(config, *PLACE, "--write", "--root", str(tmp_path / "root"))
    assert (str(refused.exception), (tmp_path / "root").exists()) == (why, False)


def test_the_steps_set_each_input_that_has_no_value_of_its_own(config: Path) -> None:
    inputs = [
        {"type": "promptString", "id": "api key", "description": ""},
        {"type": "promptString", "id": "region", "description": "", "default": "eu"},
        {"type": "command", "id": "token", "description": "", "command": "true"},
    ]
    config.write_text(json.dumps({"servers": {}, "inputs": inputs}))
    steps = json.loads(install(config, *PLACE, "--user", "robots", "--json").stdout)["next"]
    as_user = "runuser -u robots -- env -i HOME=/var/lib/smcp /opt/smcp/bin/smcp-computer"
    assert steps[-3:] == [
        "systemctl enable --now smcp-computer.service",
        f"{as_user} secrets set 'api key' --office 'lab 1' --name robot",
        "systemctl restart smcp-computer.service",
    ]


def test_it_shows_the_unit_and_the_files_and_writes_nothing(config: Path, tmp_path: Path) -> None:
    shown = install(config, *PLACE, "--user", "robots", "--root", str(tmp_path / "root"))
    assert shown.exit_code == 0
    for line in ("User=robots", "Delegate=yes", 'SMCP_GATEWAY_URL="https://gateway.example"', '{"servers": {}}'):
        assert line in shown.stdout.splitlines()
    assert "systemctl enable --now smcp-computer.service" in shown.stdout
    assert not (tmp_path / "root").exists()


def test_it_writes_the_files_and_leaves_what_somebody_may_have_changed(config: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert install(config, *PLACE, "--write", "--root", str(root)).exit_code == 0
    environment, unit = root / "etc/smcp/computer.env", root / "etc/systemd/system" / UNIT
    assert environment.stat().st_mode & 0o777 == 0o640
    assert (root / "etc/smcp/computer.json").read_text() == config.read_text()
    environment.write_text("SMCP_OFFICE=changed\n")
    unit.write_text("old")
    again = json.loads(install(config, *PLACE, "--write", "--root", str(root), "--json").stdout)
    assert {Path(each["path"]).name: each["kept"] for each in again["files"]} == {
        UNIT: False, "computer.env": True, "computer.json": True,
    }  # fmt: skip
    assert environment.read_text() == "SMCP_OFFICE=changed\n"
    assert "ExecStart=" in unit.read_text()


def test_pinned_tools_stay_pinned(config: Path, tmp_path: Path) -> None:
    pins = config.with_suffix(".pins.json")
    pins.write_text('{"version": 1, "servers": {}}')
    assert install(config, *PLACE, "--write", "--root", str(tmp_path / "root")).exit_code == 0
    copied = tmp_path / "root/etc/smcp/computer.pins.json"
    assert (copied.read_text(), copied.stat().st_mode & 0o777) == (pins.read_text(), 0o644)


def test_an_encrypted_file_whose_key_the_service_has_not_is_refused(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMCP_STATE_DIR", str(tmp_path / "state"))
    config.write_bytes(seal_file(config.read_bytes()))
    refused = install(config)
    assert isinstance(refused.exception, SettingsError)
    assert f"--config: {config} is encrypted" in str(refused.exception)


def test_values_stand_in_the_environment_file_as_systemd_reads_them() -> None:
    text = environment_text('a "b" $c\\', "名", None, "tls://nats:4222")
    values = dict(line.split("=", 1) for line in text.splitlines())
    assert shlex.split(values["SMCP_OFFICE"].replace("\\$", "$")) == ['a "b" $c\\']
    assert values["SMCP_NAME"] == '"名"'
    assert values["SMCP_NATS_URL"] == '"tls://nats:4222"'


@pytest.mark.parametrize(
    "arguments",
    [("--office", "o", "--name", "n"), (*PLACE, "--nats", "nats://n:4222")],
)
def test_it_wants_one_way_to_connect(config: Path, arguments: tuple[str, ...]) -> None:
    result = install(config, *arguments)
    assert result.exit_code == 2
    assert "--gateway" in result.stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = install(tmp_path / "none.json")
    assert isinstance(result.exception, SettingsError)
    assert "none.json: cannot be read" in str(result.exception)


def test_a_warning_beside_a_mistake_is_told_as_one(config: Path) -> None:
    config.write_text('{"servers": {"a": {"command": "x", "args": [1], "colour": "red"}}}')
    refused = install(config).exception
    assert isinstance(refused, SettingsError)
    assert [each.partition(": servers")[2] for each in refused.problems] == [".a.args.0: must be a string"]
    assert list(refused.warnings) == [f"{config}: servers.a.colour: is not a known field"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (("--office", "", "--name", "n", "--gateway", "https://g"), "--office: "),
        (("--office", "o", "--name", "n", "--gateway", "gateway.example"), "--gateway"),
        ((*PLACE, "--user", "no such"), "--user: "),
    ],
)
def test_what_would_keep_the_service_from_running_is_said(config: Path, wrong: tuple[str, ...], field: str) -> None:
    result = install(config, *wrong)
    assert isinstance(result.exception, SettingsError)
    assert field in str(result.exception)
    assert result.stdout == ""
