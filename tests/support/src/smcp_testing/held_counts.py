"""What a world of services holds, counted by asking it: for tests that nothing is left behind."""

import asyncio
import gc
import json
from collections import Counter
from typing import Final

from engineio.async_socket import AsyncSocket
from nats.js.errors import NotFoundError

from smcp_gateway.computers.socketio_computer import SocketIoComputer
from smcp_gateway.rooms.offices import Office
from smcp_gateway.sockets.engine import SendQueue
from smcp_gateway.sockets.session import Session
from smcp_gateway.sockets.websocket import WebSocketConnection
from smcp_testing.gateway_world import World, WorldBus
from smcp_testing.waiting import eventually

PER_CONNECTION: Final = (AsyncSocket, WebSocketConnection, SendQueue, Session, Office, SocketIoComputer)
"""Kinds of objects of a gateway that belong to one connection or to the offices that it was in."""

FOR_SOME_TIME: Final = frozenset({"ended_calls", "kept_results", "kept_result_bytes", "kept_cancels"})
"""What a gateway or a Computer keeps of calls that have ended, so that none runs twice: bounded, and gone by itself."""


def held(world: World) -> dict[str, int]:
    """Counts of all that a client can cause in this process's gateways, registries and buses, and of its tasks; but for
    what is kept for some time.
    """
    counts = Counter[str]()
    for gateway in world.gateways:
        counts.update({name: count for name, count in gateway.held().items() if name not in FOR_SOME_TIME})
    for bus in world.buses:
        counts.update({f"bus: {name}": value for name, value in bus.stats().items()})
    for registry in world.registries:
        counts["owner processes in the view"] += len(registry.view.owners())
    for task in asyncio.all_tasks():
        counts[f"task {getattr(task.get_coro(), '__qualname__', '')}"] += 1
    return dict(+counts)


def kept(world: World) -> dict[str, int]:
    """Counts of what its gateways keep for some time (`FOR_SOME_TIME`)."""
    counts = Counter[str]()
    for gateway in world.gateways:
        counts.update({name: count for name, count in gateway.held().items() if name in FOR_SOME_TIME})
    return dict(counts)


async def held_at_rest(world: World) -> dict[str, int]:
    """What `held` counts once nothing is under way on any bus: a join that was answered is still being announced."""

    def at_rest() -> dict[str, int]:
        counts = held(world)
        assert not {name for name in counts if name in ("bus: running", "bus: pending")}, counts
        return counts

    return await eventually(at_rest)


def alive() -> Counter[str]:
    """How many objects there are of each kind that belongs to a connection."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in PER_CONNECTION)


async def places(bus: WorldBus) -> dict[str, list[str]]:
    """What stands in the buckets: the keys of members that are members, of tombstones, and of leases."""
    js = bus.jetstream()
    found: dict[str, list[str]] = {"members": [], "tombstones": [], "leases": []}
    for bucket in ("members", "leases"):
        info = await js.stream_info(f"KV_{bucket}", subjects_filter=f"$KV.{bucket}.>")
        for subject in info.state.subjects or {}:
            try:
                last = await js.get_last_msg(f"KV_{bucket}", subject)
            except NotFoundError:
                continue
            key = subject.removeprefix(f"$KV.{bucket}.")
            if not last.data:
                continue  # a marker of what has expired
            if bucket == "leases":
                found["leases"].append(key)
            else:
                state = json.loads(last.data)["state"]
                found["members" if state == "member" else "tombstones"].append(key)
    return found
