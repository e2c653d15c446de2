"""A node of NATS is killed while calls run, and the Agent repeats what may have run, as our SDK does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_gateway.handlers import relay
from smcp_testing.box_calls import ask, call, repeated
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import Client, World, connected, gateway_world, reply
from smcp_testing.mcp_servers.configs import stdio
from smcp_testing.nats_cluster import NODES, lead, open_cluster
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

OFFICE = "office"
BACK_S = 2.0
"""After which the Computer finds another node."""


@dataclass
class Box:
    """A Computer whose tool runs until it is `released`."""

    running: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    runs: int = 0

    async def __call__(self, verb: str, _: Incoming) -> Reply:
        if verb == "pending":
            return reply({"unknown": [], "ended": []})
        self.runs += 1
        self.running.set()
        await self.released.wait()
        return reply({"content": "done"})


@dataclass
class Scene:
    """The gateway and the registry are connected to a node that lives on, the Computer to `hurt`."""

    world: World
    anna: Client
    elsewhere: World
    """The same, for clients that are to connect to `hurt`."""
    hurt: NatsServer


@asynccontextmanager
async def scene(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with (
        open_cluster(directory) as (sound, _, hurt),
        gateway_world(sound.url, kv_replicas=NODES) as world,
        connected(world.url) as anna,
    ):
        async with world.bus("test") as bus:
            await lead(bus, sound)
        await anna.join("agent", "anna", OFFICE)
        monkeypatch.setattr("smcp_bus.nats.client._RECONNECT_S", (BACK_S, BACK_S))
        yield Scene(world, anna, replace(world, nats_url=hurt.url), hurt)


@pytest.mark.rule("answers.calls.death.node")
async def test_a_call_succeeds_when_its_computer_needs_seconds_to_find_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends while there is no way back for its answer."""
    log, release = tmp_path / "runs", tmp_path / "release"
    servers = {"box": stdio(log=log)}
    async with (
        scene(tmp_path, monkeypatch) as there,
        native_computer(there.elsewhere, OFFICE, "box", servers),
    ):
        tool = {"tool_name": "sleep", "params": {"seconds": 60, "mark": "one", "until": str(release)}}
        asked = asyncio.create_task(repeated(there.anna, {**call(timeout=60), **tool}, timeout=60))
        await eventually(log.exists, timeout=30)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await there.hurt.kill()
        release.touch()
        answer = await asked
        assert loop.time() - began > BACK_S
        assert answer.get("isError") is False, answer
        assert log.read_text(encoding="utf-8").splitlines() == ["sleep one"], "it ran once, and to its end"


async def test_a_call_succeeds_when_its_gateway_needs_seconds_to_find_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Computer ends it while the gateway cannot hear that."""
    log, release = tmp_path / "runs", tmp_path / "release"
    async with (
        open_cluster(tmp_path) as (sound, _, hurt),
        gateway_world(hurt.url, kv_replicas=NODES) as world,
        connected(world.url) as anna,
        native_computer(replace(world, nats_url=sound.url), OFFICE, "box", {"box": stdio(log=log)}),
    ):
        async with world.bus("test") as bus:
            await lead(bus, sound)
        await anna.join("agent", "anna", OFFICE)
        tool = {"tool_name": "sleep", "params": {"seconds": 60, "mark": "one", "until": str(release)}}
        asked = asyncio.create_task(repeated(anna, {**call(timeout=60), **tool}, timeout=60))
        await eventually(log.exists, timeout=30)
        monkeypatch.setattr("smcp_bus.nats.client._RECONNECT_S", (BACK_S, BACK_S))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await hurt.kill()
        release.touch()
        answer = await asked
        assert loop.time() - began > BACK_S
        assert answer.get("isError") is False, answer
        assert log.read_text(encoding="utf-8").splitlines() == ["sleep one"], "it ran once, and to its end"


@pytest.mark.timeout(300)  # a cluster that has elected anew twice takes its time on a busy machine
async def test_a_call_succeeds_when_its_gateway_loses_several_nodes(tmp_path: Path) -> None:
    """The Computer loses the second one, too, where it is connected to the same."""
    log = tmp_path / "runs"
    async with (
        open_cluster(tmp_path) as nodes,
        gateway_world(nodes[2].url, kv_replicas=NODES) as world,
        connected(world.url) as anna,
        native_computer(replace(world, nats_url=nodes[0].url), OFFICE, "box", {"box": stdio(log=log)}),
    ):
        await anna.join("agent", "anna", OFFICE)
        tool = {"tool_name": "sleep", "params": {"seconds": 5, "mark": "one"}}
        asked = asyncio.create_task(repeated(anna, {**call(timeout=60), **tool}, timeout=60))
        await eventually(log.exists, timeout=30)
        (bus,) = world.buses

        def node() -> NatsServer:
            """That the gateway is connected to."""
            server = bus.server
            return next(each for each in nodes if server is not None and urlsplit(each.url).port == server.port)

        def is_elsewhere(gone: NatsServer) -> bool:
            return bus.connected and node() is not gone

        for _ in range(2):
            hurt = node()
            await hurt.kill()
            await eventually(partial(is_elsewhere, hurt), timeout=30)
            await hurt.start()
        answer = await asked
        assert answer.get("isError") is False, answer
        assert log.read_text(encoding="utf-8").splitlines() == ["sleep one"], "it ran once, and to its end"


async def test_a_new_call_waits_until_its_computer_has_found_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box()
    box.released.set()
    async with scene(tmp_path, monkeypatch) as there, there.elsewhere.computer(OFFICE, "box", box):
        await there.hurt.kill()
        # the other nodes may not know yet that this one is gone, and lose the call
        assert await repeated(there.anna, call(timeout=60), timeout=60) == {"content": "done"}
        assert box.runs == 1


@pytest.mark.rule("answers.calls.death.node")
async def test_a_computer_that_dies_with_its_node_is_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "WAIT_S", 1.5)
    box = Box()
    async with scene(tmp_path, monkeypatch) as there, there.elsewhere.computer(OFFICE, "box", box):
        monkeypatch.setattr("smcp_bus.nats.client._RECONNECT_S", (3600.0, 3600.0))
        asked = asyncio.create_task(ask(there.anna, call(timeout=60), timeout=60))
        await asyncio.wait_for(box.running.wait(), 30)
        await there.hurt.kill()
        answer = await asked
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": True}), "a repeat may find it"
        answer = await ask(there.anna, call(timeout=60) | {"a2c_repeat": 1000}, timeout=60)
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": False}), "this one was not run"
