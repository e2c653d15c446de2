"""Real nats-servers that are one cluster, each a child process of the test run, with generated permissions."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from smcp_bus.bus import RequestTimedOut
from smcp_bus.nats.bus import Bus
from smcp_standalone.nats_server import PING_S, Written
from smcp_testing.guarded_nats import GuardedNats, GuardedUrl
from smcp_testing.nats_process import NatsServer
from smcp_testing.ports import Ports
from smcp_testing.waiting import eventually

NODES: Final = 3
BUCKETS: Final = ("KV_members", "KV_leases")
"""The streams of the registries' records."""
_API_S: Final = 1.0
_LED: Final = re.compile(r" new (JetStream cluster )?metadata leader")
"""In the log of each node, once it knows who leads. Before, JetStream answers nobody, and who asks waits in vain."""


class _First(GuardedNats):
    """The node that gives credentials; the others read a copy of its file."""

    ping_s = PING_S  # nodes find each other gone by it, too

    def __init__(self, directory: Path, ports: Sequence[int]) -> None:
        port, *others = ports
        routes = [_address(each) for each in ports]
        self.others = [_Other(directory / f"node-{number}", self, each) for number, each in enumerate(others, 1)]
        self.route_port = port
        super().__init__(
            directory / "node-0",
            more={
                "server_name": "node-0",
                "cluster": {"name": "tests", "listen": _address(port), "routes": routes},
            },
        )

    def _write(self) -> Written:
        written = super()._write()
        text = written.conf.read_text(encoding="utf-8")
        for other in self.others:
            other.copy(text)
        return written

    async def allow(self) -> None:
        await super().allow()
        for other in self.others:
            await other.read_again()


class _Other(NatsServer):
    """One of the other nodes."""

    def __init__(self, directory: Path, first: _First, route_port: int) -> None:
        directory.mkdir(parents=True)
        conf = directory / "nats-server.conf"
        super().__init__(directory, config=conf, jetstream=False)  # the file has it
        self._first, self._route_port, self._conf = first, route_port, conf

    @property
    def url(self) -> GuardedUrl:
        return GuardedUrl(super().url, self._first)

    def copy(self, text: str) -> None:
        """Write the first one's configuration as this one's own."""
        listen = f'"listen": "{_address(self._first.route_port)}"'
        for old, new in {
            "node-0": self.directory.name,
            listen: f'"listen": "{_address(self._route_port)}"',
        }.items():
            assert old in text
            text = text.replace(old, new)
        self._conf.write_text(text, encoding="utf-8")


@asynccontextmanager
async def open_cluster(directory: Path) -> AsyncIterator[Sequence[NatsServer]]:
    """Three nodes with JetStream, which has a leader; each in a directory of its own.

    Raises:
        RuntimeError: as `NatsServer.start`.
    """
    ports = Ports()  # all nodes have to know them before the first one starts, so none can choose its own
    first = _First(directory, [ports.take() for _ in range(NODES)])
    nodes = [first, *first.others]
    async with AsyncExitStack() as stack:
        for node in nodes:
            stack.push_async_callback(node.stop)
        await asyncio.gather(*(node.start() for node in nodes))
        await eventually(lambda: all(_LED.search(_log(node)) for node in nodes), message="JetStream has no leader")
        yield nodes


async def lead(bus: Bus, node: NatsServer) -> None:
    """From now on `node` leads the registries' buckets: killing another one stops nobody who reads or writes them.

    Killing the leader does, for some seconds, until another one is elected.

    Args:
        bus: whose credential may use `$JS.API.>`.
    """
    wanted = orjson.dumps({"placement": {"preferred": node.directory.name}})

    async def leads(stream: str) -> bool:
        try:
            told = orjson.loads((await bus.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=_API_S)).body)
            if told.get("cluster", {}).get("leader") == node.directory.name:
                return True
            await bus.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", wanted, timeout=_API_S)
        except RequestTimedOut:
            pass  # nobody leads it just now
        return False

    for stream in BUCKETS:
        await eventually(partial(leads, stream), message=f"{node.directory.name} does not lead {stream}")


def _address(port: int) -> str:
    return f"127.0.0.1:{port}"


def _log(node: NatsServer) -> str:
    return node.log.read_text(encoding="utf-8")
