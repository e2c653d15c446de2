"""The bus's view of the nodes of NATS' cluster."""

import asyncio
from pathlib import Path
from urllib.parse import urlparse

from nats.aio.client import Server

from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_testing.nats_cluster import open_cluster
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually


def tried(bus: Bus, *nodes: NatsServer) -> set[str]:
    """The addresses (`host:port`) of those nodes that are tried once the connection breaks."""
    known = [Server(urlparse(node.url)) for node in nodes]
    tries = (bus.choose_server(known, {})[0] for _ in range(2 * len(nodes)))  # each of them at least once
    return {server.uri.netloc for server in tries if server is not None}


def addresses(*nodes: NatsServer) -> set[str]:
    return {f"127.0.0.1:{node.port}" for node in nodes}


async def test_a_node_that_leaves_is_noticed_at_once_and_not_tried_again(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with open_cluster(tmp_path) as (first, second, third), open_bus(BusConfig(url=first.url)) as bus:
        await eventually(lambda: tried(bus, first, second, third) == addresses(first, second, third))
        # nodes that have just started may close a second route between two of them, and seem to leave for a moment
        began = loop.time()
        await third.kill()
        await eventually(lambda: (bus.node_left_at or 0) >= began)
        await eventually(lambda: tried(bus, first, second, third) == addresses(first, second))
        await third.start()
        await eventually(lambda: tried(bus, first, second, third) == addresses(first, second, third))


async def test_a_lost_node_is_noticed_after_reconnecting_to_another_one(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as (first, second, third), open_bus(BusConfig(url=first.url)) as bus:
        await eventually(lambda: tried(bus, first, second, third) == addresses(first, second, third))
        await first.kill()
        await eventually(lambda: bus.connected and bus.node_left_at is not None)
        # "what was configured is tried all the same": the others may hear of each other a moment later
        await eventually(lambda: tried(bus, first, second, third) == addresses(first, second, third))


async def test_a_restarted_single_server_does_not_count_as_a_lost_node(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        await nats_server.restart()
        await eventually(lambda: bus.connected)
        await bus.flush()
        assert bus.node_left_at is None
