"""What a scenario may know of the system it runs in: where to connect, and what can be hurt."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import psutil

from smcp_standalone.nats_config_file import NatsModel
from tests.e2e.worlds.disk import Disk

MARK = "E2E_WORLD"
"""In the environment of every process of a world, and so of what these start: nobody is overlooked. See `ForkedProcess`
for those that are forked."""


class Part(Protocol):
    """Something that runs, can be hurt, and comes back as it was started."""

    @property
    def name(self) -> str: ...

    @property
    def running(self) -> bool: ...

    @property
    def wanted(self) -> bool:
        """Whether it should be running: it was started and not stopped since."""
        ...

    @property
    def pid(self) -> int: ...

    @property
    def log(self) -> Path: ...

    @property
    def stats_url(self) -> str:
        """Where it says what it holds."""
        ...

    async def start(self) -> None:
        """Start it again, on the same address, and wait until it is ready."""
        ...

    async def ready(self, timeout: float = ...) -> None:
        """Wait until it says that it is ready."""
        ...

    async def stop(self, within: float = ...) -> int:
        """SIGTERM; returns its exit code. Raises AssertionError when it did not end in time (seconds)."""
        ...

    async def kill(self) -> None:
        """kill -9."""
        ...

    def pause(self) -> None:
        """SIGSTOP."""
        ...

    def resume(self) -> None: ...

    def tail(self, lines: int = ...) -> str: ...


@dataclass(frozen=True)
class Gateway:
    url: str
    part: Part


@dataclass(frozen=True)
class Collector:
    """A receiver of spans; `url` is for this machine."""

    url: str
    part: Part


@dataclass(frozen=True)
class ComputerHost:
    """A native Computer: under which name it is in which office."""

    office: str
    name: str
    part: Part
    ran: Path
    """Where its counting tool notes every call that ran, one `req_id` a line."""


@dataclass(frozen=True)
class Wait:
    """How long an answer took that was promised within a time (seconds)."""

    what: str
    promised: float
    took: float
    undisturbed: float
    """Without the time in which processes waited for a processor."""

    def __str__(self) -> str:
        return f"{self.what} took {self.took:.2f} s of {self.promised:g} s ({self.undisturbed:.2f} s undisturbed)"


@dataclass(frozen=True)
class World:
    """A running system.

    Always there: the Computers `alpha` and `beta` in `LAB`, and another `alpha` in `ELSEWHERE`.
    """

    name: str
    gateways: Sequence[Gateway]
    computers: Sequence[ComputerHost]
    registries: Sequence[Part]
    nats: Part
    nats_url: str
    nats_model: NatsModel
    credentials: Path
    """The directory of credential files."""
    lease_s: float
    spread: bool
    """Whether each part is a process of its own, that can be hurt alone."""
    mark: str = field(default_factory=lambda: uuid4().hex)
    more_nats: Sequence[Part] = ()
    """The other nodes, where NATS is a cluster."""
    disk: Disk | None = None
    """JetStream's, where it is small."""
    collector: Collector | None = None
    """In which its spans arrive; none of the parts."""
    waits: list[Wait] = field(default_factory=list)
    """For answers with a promise: to be shown, since a test allows for a machine that is busy."""

    def gateway(self, number: int) -> Gateway:
        """The gateway of that number, or another one where there are fewer."""
        return self.gateways[number % len(self.gateways)]

    def url(self, number: int = 0) -> str:
        return self.gateway(number).url

    def computer(self, office: str, name: str) -> ComputerHost:
        return next(host for host in self.computers if (host.office, host.name) == (office, name))

    @property
    def nodes(self) -> list[Part]:
        """All of NATS."""
        return [self.nats, *self.more_nats]

    @property
    def parts(self) -> list[Part]:
        """Each process once, in the order in which they were started."""
        hosts = [host.part for host in self.computers]
        found = [*self.nodes, *self.registries, *(gateway.part for gateway in self.gateways), *hosts]
        return list({id(part): part for part in found}.values())

    @contextmanager
    def telling(self) -> Iterator[None]:
        """An error in the block carries the end of every log."""
        try:
            yield
        except BaseException as error:
            for part in self.parts:
                error.add_note(f"--- {part.name} ({'runs' if part.running else 'ended'})\n{part.tail()}")
            raise


def lease_s(unless_told: float) -> float:
    """The lease of a world that is hurt, in seconds: what WORLD_LEASE_S says (`make soak`: that of production), for all
    such worlds alike.

    Args:
        unless_told: otherwise. Gateways ping their clients by it: with 2 s a client is cut off as soon as some process
            gets no processor for 1.4 s, which happens on a busy machine; 4 s are the least.
    """
    return float(os.environ.get("WORLD_LEASE_S") or unless_told)


LEASE_S = 10.0
"""Of a world that nobody hurts: that of production."""

LAB = "lab"
ELSEWHERE = "北京 3.*.>"


def instance(name: str) -> dict[str, str]:
    """The setting by which spans say which part of the world they are from."""
    return {"OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={name}"}


def strays(mark: str) -> list[str]:
    """The processes of a world that still run, by whatever parent."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.Error, OSError):
            continue
    return found


def child_environment(mark: str, **settings: str) -> dict[str, str]:
    """The environment of a part: ours without any setting of the system, then `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SMCP_", "OTEL_"))}
    return {**kept, MARK: mark, "PYTHONUNBUFFERED": "1", "SMCP_LOG_FORMAT": "json", **settings}
