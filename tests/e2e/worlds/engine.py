"""The docker engine that world `containers` runs on.

It is asked by the client of testcontainers. Images are built by docker's command line, which tests of images ask, too.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from docker.errors import DockerException, ImageNotFound
from requests.exceptions import RequestException
from testcontainers.core.docker_client import DockerClient

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
        # by the command line: the other client leaves a socket open where nobody answers
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


def options() -> dict[str, object]:
    """Of each client of the engine."""
    _find_engine()
    return {"timeout": int(_SECONDS)}


@contextmanager
def engine() -> Iterator[DockerClient]:
    """The engine, to be asked."""
    asked = DockerClient(**options())
    try:
        yield asked
    finally:
        asked.client.close()


@contextmanager
def told() -> Iterator[None]:
    """An error of the engine fails the test with its text."""
    try:
        yield
    except (DockerException, RequestException) as error:
        raise AssertionError(f"the docker engine: {error}") from error


@cache
def image(name: str, tag: str = TAG) -> str:
    """One of this tree's images, by its name, or another commit's. Raises AssertionError where it was not built."""
    tagged = f"{name}:{tag}"
    with engine() as asked, told():
        try:
            asked.client.images.get(tagged)
        except ImageNotFound:
            raise AssertionError(f"there is no image {tagged}: make images") from None
    return tagged


@cache
def nats_image() -> str:
    """The official nats-server, or the local one where it cannot be pulled."""
    script = ROOT / "docker" / "image.sh"
    return os.environ.get("NATS_IMAGE") or _run(str(script), "nats:2.15", "nats").stdout.strip()


@cache
def _find_engine() -> None:
    """Have the engine asked that docker's command line would ask: testcontainers knows nothing of docker's contexts."""
    if not os.environ.get("DOCKER_HOST"):
        host = _run(_client(), "context", "inspect", "--format", "{{.Endpoints.docker.Host}}", check=False).stdout
        if host.strip():
            os.environ["DOCKER_HOST"] = host.strip()


@cache
def _client() -> str:
    return _run(str(ROOT / "docker" / "client.sh")).stdout.strip()


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{' '.join(command)} did not end within {_SECONDS:g} s") from None
