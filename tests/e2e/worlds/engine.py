"""The docker engine that world `containers` runs on, asked by its command line."""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
TAG: Final = os.environ.get("IMAGE_TAG", "dev")
_SECONDS: Final = 120.0


def require_engine() -> None:
    """Skip the test where no docker engine answers; where `CONTAINERS` is `true`, fail it."""
    try:
        client = _client()
    except subprocess.CalledProcessError as error:
        missing = f"world `containers` needs docker: {error.stderr.strip()}"
    else:
        asked = _run(client, "version", "--format", "{{.Server.Version}}", check=False)
        if asked.returncode == 0:
            return
        missing = f"world `containers` needs a docker engine that answers: {asked.stderr.strip()}"
    if os.environ.get("CONTAINERS") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def docker(*arguments: str) -> str:
    """Run a command of docker; gives what it prints.

    Raises:
        AssertionError: it failed, or did not end within two minutes; says why.
    """
    done = _run(_client(), *arguments, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout.strip()


def client() -> str:
    """The program."""
    return _client()


@cache
def image(name: str, tag: str = TAG) -> str:
    """One of this tree's images, by its name, or another commit's. Raises AssertionError where it was not built."""
    tagged = f"{name}:{tag}"
    asked = _run(_client(), "image", "inspect", "--format", "ok", tagged, check=False)
    assert asked.returncode == 0, f"there is no image {tagged}: make images"
    return tagged


@cache
def nats_image() -> str:
    """The official nats-server, or the local one where it cannot be pulled."""
    script = ROOT / "docker" / "image.sh"
    return os.environ.get("NATS_IMAGE") or _run(str(script), "nats:2.15", "nats").stdout.strip()


@cache
def _client() -> str:
    return _run(str(ROOT / "docker" / "client.sh")).stdout.strip()


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{' '.join(command)} did not end within {_SECONDS:g} s") from None
