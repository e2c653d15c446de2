"""Which node of NATS does what, and where the nodes are killed and come back."""

import asyncio
from datetime import datetime
from typing import Any

import aiohttp

from smcp_testing.waiting import eventually
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.worlds.container import Container
from tests.e2e.worlds.world import Part, World

_ELECTED_S = 30.0


async def leader(world: World, bucket: str = "members") -> Part:
    """The node that leads a bucket's stream. Raises AssertionError where none does for 30 s."""

    async def elected() -> Part | None:
        running = {node.name: node for node in world.nodes if node.running}
        for node in running.values():
            found = _leader_of(await _told(node, "jsz?streams=1"), f"KV_{bucket}")
            if found in running:
                return running[found]
        return None

    found = await eventually(elected, timeout=_ELECTED_S, message=f"nobody leads {bucket}")
    assert found is not None
    return found


async def come_back(*nodes: Part) -> None:
    """They were killed, and run again: not yet ready, which without the others none can be."""
    for node in nodes:
        assert isinstance(node, Container)
        await asyncio.to_thread(node.launch)


async def node_of(world: World, part: Part) -> Part:
    """The node that a part is connected to. Nodes know for a while of connections that were cut: the newest counts."""
    began: dict[datetime, Part] = {}
    for node in world.nodes:
        connections = (await _told(node, "connz?auth=1")).get("connections", [])
        of_part = [each["start"] for each in connections if each.get("authorized_user") == part.name]
        began |= {datetime.fromisoformat(start): node for start in of_part}
    assert began, f"{part.name} is connected to none of {len(world.nodes)} nodes"
    return began[max(began)]


async def path_on_one_node(world: World) -> tuple[str, Part]:
    """An office whose gateway and whose Computer are connected to the same node, and that node.

    Who connects chooses a node at random: a Computer is started again until it is so.
    """
    async with asyncio.timeout(_ELECTED_S + 60):
        while True:
            for number, office in enumerate((NORTH, SOUTH)):
                node = await node_of(world, world.gateway(number).part)
                if node is await node_of(world, world.computer(office, WORKER).part):
                    return office, node
            worker = world.computer(NORTH, WORKER).part
            await worker.stop()
            await worker.start()


async def _told(node: Part, what: str) -> dict[str, Any]:
    """What nats-server's monitoring says; nothing while it cannot be reached."""
    assert isinstance(node, Container)
    url = node.ready_url.replace("healthz", what)
    try:
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return dict(await answer.json())
    except aiohttp.ClientError:
        return {}


def _leader_of(told: dict[str, Any], stream: str) -> str | None:
    for account in told.get("account_details") or []:
        for detail in account.get("stream_detail") or []:
            if detail["name"] == stream:
                leads: str | None = (detail.get("cluster") or {}).get("leader")
                return leads
    return None
