"""One container as a part of a world: it is hurt as a process is, and comes back as it was made."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.worlds.engine import client, docker
from tests.e2e.worlds.process import Process

USER: Final = 10001
"""As whom the images run."""
_START_S: Final = 180.0
"""Nothing is forked from what has been imported: each part, and each MCP server, is a Python of its own that starts."""


@dataclass(frozen=True)
class Made:
    """How a container is made: as `docker/compose.yaml` does it, so that what works here works there.

    Args:
        image: its image.
        arguments: for the image's entry point.
        env: its variables.
        network: the one to NATS; ports are published on another one, so that it can be cut alone.
        publish: a port of 127.0.0.1 for each of its ports.
        mounts: directories of this machine, at the same path inside; `shown`: those that are for reading only.
    """

    image: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    network: str
    publish: Mapping[int, int]
    mounts: Sequence[Path]
    shown: Sequence[Path] = ()
    alias: str | None = None
    """Its name in the network."""
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Where the engine's volumes are inside, by their names."""
    health_s: float | None = None
    """How often the engine asks for its health (seconds), where that is not to be as the image says."""


class Container(Process):
    """Its log is what it prints, followed by a docker client that lives as long as it does."""

    def __init__(self, name: str, made: Made, env: Mapping[str, str], directory: Path, ready_url: str) -> None:
        """Args:
        env: of the docker client.
        """
        self._made = made
        self.image = made.image
        """Which it was made of last."""
        self.id = docker("create", *_options(made), self.image, *made.arguments)
        self._network = made.network
        self._alias = [] if made.alias is None else ["--alias", made.alias]
        self._address: list[str] = []
        self._connect()
        super().__init__(name, [client(), "start", "--attach", self.id], env, directory, ready_url)

    @property
    def pid(self) -> int:
        """Of its first process, as this machine counts them."""
        assert self.running, f"{self.name} does not run"
        return int(docker("inspect", "--format", "{{.State.Pid}}", self.id))

    @property
    def inside_url(self) -> str:
        """Where it listens, past docker's proxy of published ports, which takes megabytes at once. For this machine."""
        (port, *_) = self._made.publish
        address = docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", self.id)
        return f"http://{address}:{port}"

    async def start(self) -> None:
        self.launch()
        await self.ready(_START_S)

    async def stop(self, within: float = 30.0) -> int:
        """As of a process; a paused one goes on first."""
        self.resume()
        return await super().stop(within)

    async def kill(self) -> None:
        child = self._running()
        await asyncio.to_thread(docker, "kill", self.id)
        await self._ended(child, 30.0)

    def pause(self) -> None:
        """As SIGSTOP of all its processes at once (the kernel's freezer)."""
        docker("pause", self.id)

    def resume(self) -> None:
        if self.running and docker("inspect", "--format", "{{.State.Paused}}", self.id) == "true":
            docker("unpause", self.id)

    def cut(self) -> None:
        """From now on there is no way between it and NATS; clients reach it as before."""
        networks = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", self.id))
        self._address = ["--ip", networks[self._network]["IPAddress"]]
        docker("network", "disconnect", self._network, self.id)

    def heal(self) -> None:
        """The way is back, at the same address: whoever has not noticed goes on."""
        docker("network", "connect", *self._address, *self._alias, self._network, self.id)

    def limit_memory(self, limit: int) -> None:
        """Args:
        limit: bytes that it may have from now on, in memory or swapped out; one that runs has to have fewer.
        """
        docker("update", "--memory", str(limit), "--memory-swap", str(limit), self.id)

    @property
    def out_of_memory(self) -> bool:
        """Whether it ended because it wanted more than its limit."""
        return docker("inspect", "--format", "{{.State.OOMKilled}}", self.id) == "true"

    def replace(self, image: str) -> None:
        """The next start is of this image; otherwise it is as it was. For one that does not run."""
        assert not self.running, f"{self.name} runs"
        self.remove()
        self.image = image
        self.id = docker("create", *_options(self._made), image, *self._made.arguments)
        self._connect()
        self.command = (client(), "start", "--attach", self.id)

    def remove(self) -> None:
        docker("rm", "--force", "--volumes", self.id)

    def _connect(self) -> None:
        docker("network", "connect", *self._alias, self._network, self.id)


def hand_over(path: Path) -> None:
    """Let the user of the images read and write what is in `path`, where this process may do that."""
    if os.getuid() != 0:
        return  # then the containers run as this user
    for each in (path, *path.rglob("*")):
        os.chown(each, USER, USER)


def in_image(server: Mapping[str, object]) -> dict[str, object]:
    """The configuration of an MCP server of the tests, as it is started in the image smcp-computer-testing.

    In a run of tests it names a program that stands for one that is forked (`smcp_testing.nursery`); what is forked
    would run outside of the container.
    """
    parameters = server.get("server_parameters")
    if not isinstance(parameters, Mapping) or parameters.get("command") != sys.executable:
        return dict(server)
    arguments = list(parameters["args"])
    if arguments[:2] == ["-I", "-S"]:
        _, _, _, _, module, *rest = arguments
        arguments = ["-m", module, *rest]
    return {**server, "server_parameters": {**parameters, "command": "/opt/testing/bin/python", "args": arguments}}


def _options(made: Made) -> list[str]:
    user, group = (USER, USER) if os.getuid() == 0 else (os.getuid(), os.getgid())
    options = ["--read-only", "--tmpfs", "/tmp", "--tmpfs", f"/var/lib/smcp:exec,uid={user},gid={group}"]
    options += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--user", f"{user}:{group}"]
    for variable, value in made.env.items():
        options += ["--env", f"{variable}={value}"]
    for inside, outside in made.publish.items():
        options += ["--publish", f"127.0.0.1:{outside}:{inside}"]
    for directory in made.mounts:
        options += ["--volume", f"{directory}:{directory}"]
    for directory in made.shown:
        options += ["--volume", f"{directory}:{directory}:ro"]
    if made.health_s is not None:
        options += ["--health-interval", f"{made.health_s:g}s"]
    for volume, place in made.volumes.items():
        options += ["--volume", f"{volume}:{place}"]
    for label, value in made.labels.items():
        options += ["--label", f"{label}={value}"]
    return options
