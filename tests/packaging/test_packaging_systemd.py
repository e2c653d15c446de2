"""deploy/systemd: what the unit names exists in the Computer's command, settings and files, and systemd takes it."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from smcp_computer.main import app
from smcp_computer.settings import ComputerSettings, check_connection
from smcp_service.settings import load_settings, variables
from tests.packaging.wheelhouse import ROOT

UNIT: Final = ROOT / "deploy" / "systemd" / "smcp-computer.service"
ENVIRONMENT: Final = ROOT / "deploy" / "systemd" / "computer.env"
ETC: Final = "/etc/smcp/"
ANALYZE: Final = shutil.which("systemd-analyze")


def settings_of(text: str) -> dict[str, list[str]]:
    """The values of each name, in order, of all sections."""
    found = defaultdict[str, list[str]](list)
    for line in text.splitlines():
        name, given, value = line.partition("=")
        if given and not line.startswith(("#", "[")):
            found[name].append(value)
    return found


def variables_of(text: str) -> list[dict[str, str]]:
    """What is set in the file as it is, and with each of its other ways to be connected in place of the first."""
    first = {name: values[-1] for name, values in settings_of(text).items()}
    ways = [dict(re.findall(r"^#(SMCP_NATS_\w+)=(.*)$", part, re.MULTILINE)) for part in text.split("\n\n")]
    base = {name: value for name, value in first.items() if name not in ("SMCP_GATEWAY_URL", "SMCP_TOKEN_FILE")}
    return [first, *({**base, **way} for way in ways if way)]


SERVICE: Final = settings_of(UNIT.read_text(encoding="utf-8"))
WAYS: Final = variables_of(ENVIRONMENT.read_text(encoding="utf-8"))


def test_its_command_is_an_installed_one_with_arguments_that_it_has() -> None:
    scripts = tomllib.loads((ROOT / "services/computer/pyproject.toml").read_text())["project"]["scripts"]
    for line in SERVICE["ExecStart"]:
        program, *arguments = line.split()
        assert Path(program).name in scripts
        assert Path(program).parent.as_posix() in SERVICE["Environment"][1]
        assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.get("SMCP_NATS_URL", "a gateway"))
def test_each_way_of_its_environment_is_a_configuration_of_a_computer(
    way: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = dict(pair.split("=", 1) for line in SERVICE["Environment"] for pair in line.split())
    for name, value in {**own, **way}.items():
        if not name.startswith("SMCP_"):
            continue
        assert name in variables(ComputerSettings), name
        if value.startswith(ETC):  # where the host has its files
            (tmp_path / value.removeprefix(ETC)).write_text("{}")
        monkeypatch.setenv(name, value.replace(ETC, f"{tmp_path}/"))
    settings = load_settings(ComputerSettings)
    check_connection(settings)
    assert settings.config == tmp_path / "computer.json"
    assert (settings.gateway_url is None) == ("SMCP_NATS_URL" in way)


def test_there_are_two_ways() -> None:
    assert [way.get("SMCP_NATS_URL", "")[:4] for way in WAYS] == ["", "tls:"]


def test_its_files_are_where_it_may_read_and_write() -> None:
    assert SERVICE["EnvironmentFile"] == [f"{ETC}{ENVIRONMENT.name}"]
    (state,) = SERVICE["StateDirectory"]
    paths = {value for way in WAYS for value in way.values() if value.startswith("/")}
    assert paths
    assert all(path.startswith(ETC) for path in paths)
    assert f"HOME=/var/lib/{state} " in SERVICE["Environment"][0]
    assert SERVICE["WorkingDirectory"] == [f"/var/lib/{state}"]


def test_it_has_longer_to_stop_than_its_calls_have_to_end() -> None:
    drain: float = ComputerSettings.model_fields["drain_s"].default
    assert int(SERVICE["TimeoutStopSec"][0]) > drain


def test_wrong_configuration_is_not_tried_again_and_all_else_is() -> None:
    assert SERVICE["RestartPreventExitStatus"] == ["2"]
    assert "ExecStartPre" not in SERVICE, "what ends there is tried again, whatever it ends with"
    assert (SERVICE["Restart"], SERVICE["StartLimitIntervalSec"]) == (["always"], ["0"])


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")
def test_systemd_takes_it_and_finds_it_hardened(tmp_path: Path) -> None:
    assert ANALYZE is not None
    unit = tmp_path / UNIT.name
    # The command has to exist where systemd looks, and the user on this host.
    text = UNIT.read_text(encoding="utf-8").replace("/opt/smcp/bin/", f"{Path(sys.executable).parent}/")
    unit.write_text(text.replace("User=smcp", "User=daemon").replace("Group=smcp", "Group=daemon"), encoding="utf-8")
    verified = subprocess.run([ANALYZE, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    about = [line for line in verified.stderr.splitlines() if UNIT.name in line]
    assert about == []
    judged = subprocess.run(
        [ANALYZE, "security", "--offline=true", "--threshold=30", "--no-pager", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout[-500:]
