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


def test_the_unit_runs_an_installed_command_with_valid_arguments() -> None:
    scripts = tomllib.loads((ROOT / "services/computer/pyproject.toml").read_text())["project"]["scripts"]
    for line in SERVICE["ExecStart"]:
        program, *arguments = line.split()
        assert Path(program).name in scripts
        assert Path(program).parent.as_posix() in SERVICE["Environment"][1]
        assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.get("SMCP_NATS_URL", "a gateway"))
def test_the_computer_accepts_each_variant_of_the_environment_file(
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


def test_the_environment_file_has_two_variants() -> None:
    assert [way.get("SMCP_NATS_URL", "")[:4] for way in WAYS] == ["", "tls:"]


def test_the_unit_may_access_the_files_that_it_names() -> None:
    assert SERVICE["EnvironmentFile"] == [f"{ETC}{ENVIRONMENT.name}"]
    (state,) = SERVICE["StateDirectory"]
    paths = {value for way in WAYS for value in way.values() if value.startswith("/")}
    assert paths
    assert all(path.startswith(ETC) for path in paths)
    assert f"HOME=/var/lib/{state} " in SERVICE["Environment"][0]
    assert SERVICE["WorkingDirectory"] == [f"/var/lib/{state}"]


def test_the_stop_timeout_is_longer_than_the_drain() -> None:
    drain: float = ComputerSettings.model_fields["drain_s"].default
    assert int(SERVICE["TimeoutStopSec"][0]) > drain


def test_the_unit_restarts_after_every_exit_but_a_wrong_configuration() -> None:
    assert SERVICE["RestartPreventExitStatus"] == ["2"]
    assert "ExecStartPre" not in SERVICE, "what ends there is tried again, whatever it ends with"
    assert (SERVICE["Restart"], SERVICE["StartLimitIntervalSec"]) == (["always"], ["0"])


def test_the_computer_may_divide_the_cgroup_of_its_unit() -> None:
    assert SERVICE["Delegate"] == ["yes"]
    assert "ProtectControlGroups" not in SERVICE, "the Computer has to write below its cgroup"
    assert SERVICE["KillMode"] == ["mixed"], "what is left below it is killed, too"


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")
def test_systemd_accepts_the_unit_and_rates_it_as_hardened(tmp_path: Path) -> None:
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
