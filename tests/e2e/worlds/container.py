"""One container as a part of a world: it is hurt as a process is, and comes back as it was made."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from docker.models.containers import Container as Wrapped
from testcontainers.core.container import DockerContainer

from tests.e2e.worlds.attached import Attached
from tests.e2e.worlds.engine import options, told
from tests.e2e.worlds.network import CutNetwork
from tests.e2e.worlds.process import Child, Launched

USER: Final = 10001
"""As whom the images run."""


@dataclass(frozen=True)
class Made:
    """How a container is made: as `docker/compose.yaml` does it, so that what works here works there.

    Args:
        image: its image.
        arguments: for the image's entry point, or for `entrypoint`.
        env: its variables.
        network: the one to NATS; ports are published on another one, so that it can be cut alone.
        publish: a port of 127.0.0.1 for each of its ports.
        mounts: directories of this machine, at the same path inside; `shown`: those that are for reading only.
    """

    image: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    network: CutNetwork
    publish: Mapping[int, int]
    mounts: Sequence[Path]
    shown: Sequence[Path] = ()
    alias: str | None = None
    """Its name in the network."""
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Where the engine's volumes are inside, by their names."""
    entrypoint: Sequence[str] | None = None
    """In place of the image's."""
    health_s: float | None = None
    """How often the engine asks for its health (seconds). None: never; each time takes a processor for 0.2 s."""


class Hardened(DockerContainer):
    """A container as it is made for a world. testcontainers' own `start` would run it as soon as it is made, on one
    network; this one is on a second one by then, is started again and again, and is followed from its first line on."""

    def __init__(self, made: Made, image: str) -> None:
        super().__init__(image, docker_client_kw=options(), command=list(made.arguments))  # type: ignore[arg-type] # it hands it on
        user, group = (USER, USER) if os.getuid() == 0 else (os.getuid(), os.getgid())
        self.with_envs(**made.env)
        for directory in made.mounts:
            self.with_volume_mapping(str(directory), str(directory), "rw")
        for directory in made.shown:
            self.with_volume_mapping(str(directory), str(directory), "ro")
        for volume, place in made.volumes.items():
            self.with_volume_mapping(volume, str(place), "rw")
        self._options: dict[str, Any] = {
            "read_only": True,
            "tmpfs": {"/tmp": "", "/var/lib/smcp": f"exec,uid={user},gid={group}"},
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "user": f"{user}:{group}",
            "network": "bridge",
            "ports": {f"{inside}/tcp": ("127.0.0.1", outside) for inside, outside in made.publish.items()},
            "labels": dict(made.labels),
            "entrypoint": made.entrypoint,
        }
        asked = made.health_s
        self._options["healthcheck"] = {"test": ["NONE"]} if asked is None else {"interval": int(asked * 1e9)}
        self._made = made

    def create(self) -> None:
        """Make it, on both networks."""
        with told():
            self._container = self.get_docker_client().create(
                self.image,
                command=self._command,
                environment=self.env,
                volumes={host: {"bind": mount["bind"], "mode": mount["mode"]} for host, mount in self.volumes.items()},
                **self._options,
            )
        self._made.network.join(self.get_container_id(), alias=self._made.alias)


class Container(Launched):
    """One of a world. Its log is what it prints."""

    def __init__(self, name: str, made: Made, directory: Path, ready_url: str, health_url: str | None = None) -> None:
        super().__init__(name, directory, ready_url, health_url)
        self._made = made
        self._address: str | None = None
        self._container = self._create(made.image)

    @property
    def image(self) -> str:
        """Which it was made of last."""
        return self._container.image

    @property
    def pid(self) -> int:
        """Of its first process, as this machine counts them."""
        assert self.running, f"{self.name} does not run"
        return int(self._state()["Pid"])

    @property
    def health(self) -> str:
        """As the engine sees it: `starting`, `healthy` or `unhealthy`."""
        return str(self._state()["Health"]["Status"])

    @property
    def inside_url(self) -> str:
        """Where it listens, past docker's proxy of published ports, which takes megabytes at once. For this machine."""
        (port, *_) = self._made.publish
        return f"http://{self._looked_at().attrs['NetworkSettings']['IPAddress']}:{port}"

    @property
    def out_of_memory(self) -> bool:
        """Whether it ended because it wanted more than its limit."""
        return bool(self._state()["OOMKilled"])

    async def start(self) -> None:
        self.launch()
        await self.ready()

    async def stop(self, within: float = 30.0) -> int:
        """As of a process; a paused one goes on first."""
        self.resume()
        return await super().stop(within)

    async def kill(self) -> None:
        child = self._running()
        await asyncio.to_thread(child.kill)
        await self._ended(child, 30.0)

    def pause(self) -> None:
        """As SIGSTOP of all its processes at once (the kernel's freezer)."""
        with told():
            self._wrapped.pause()

    def resume(self) -> None:
        if self.running and self._state()["Paused"]:
            with told():
                self._wrapped.unpause()

    def cut(self) -> None:
        """From now on there is no way between it and NATS; clients reach it as before."""
        networks = self._looked_at().attrs["NetworkSettings"]["Networks"]
        self._address = networks[self._made.network.name]["IPAddress"]
        self._made.network.leave(self._container.get_container_id())

    def heal(self) -> None:
        """The network is back, at the same address: open connections continue."""
        identity = self._container.get_container_id()
        self._made.network.join(identity, alias=self._made.alias, address=self._address)

    def limit_memory(self, limit: int) -> None:
        """Args:
        limit: bytes that it may have from now on, in memory or swapped out; one that runs has to have fewer.
        """
        with told():
            self._wrapped.update(mem_limit=limit, memswap_limit=limit)

    def replace(self, image: str) -> None:
        """The next start is of this image; otherwise it is as it was. For one that does not run."""
        assert not self.running, f"{self.name} runs"
        self.remove()
        self._container = self._create(image)

    def remove(self) -> None:
        with told():
            self._container.stop()

    def _spawn(self) -> Child:
        return Attached(self._wrapped, self.log)

    def _create(self, image: str) -> Hardened:
        container = Hardened(self._made, image)
        container.create()
        return container

    @property
    def _wrapped(self) -> Wrapped:
        return self._container.get_wrapped_container()

    def _looked_at(self) -> Wrapped:
        """As it is now."""
        with told():
            self._wrapped.reload()
        return self._wrapped

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._looked_at().attrs["State"]
        return state


def hand_over(path: Path) -> None:
    """Let the user of the images read and write what is in `path`, where this process may do that."""
    if os.getuid() != 0:
        return  # then the containers run as this user
    for each in (path, *path.rglob("*")):
        os.chown(each, USER, USER)


def in_image(server: Mapping[str, object]) -> dict[str, object]:
    """The configuration of an MCP server of the tests, as it is started in the image smcp-computer-testing.

    In a run of tests it names a program that stands for one that is forked (`smcp_testing.fork_server`); what is forked
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
