"""Tenants with tokens take more than their share of a gateway and a registry that run as processes.

Each test says what the same attack did before there were shares and quotas.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nats
import psutil
from nats.aio.msg import Msg

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import NOTIFICATION_ID
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_testing.gateway_world import MIB, connected
from smcp_testing.raw_client import raw_client
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.socketio_pair import serve
from smcp_testing.trickle import Trickle
from smcp_testing.waiting import eventually

BIN: Final = Path(sys.executable).parent
ANSWER: Final = b'{"text":"' + b"x" * (2 * MIB) + b'"}'
UPDATES: Final = 5_000
KEPT: Final = 64 * MIB
"""Of results that a gateway keeps for repeats."""
AT_ONCE: Final = 1000
"""Less than one connection may have unanswered."""


@dataclass
class Scene:
    registry: ServiceProcess
    gateway: ServiceProcess
    url: str


@asynccontextmanager
async def scene(nats_url: str, **settings: str) -> AsyncIterator[Scene]:
    common = {"SMCP_NATS_URL": nats_url, "SMCP_LOG_FORMAT": "json", "SMCP_LEASE_S": "5"} | settings
    async with (
        service_process(BIN / "smcp-registry", env=common) as registry,
        service_process(BIN / "smcp-gateway", env=common | {"SMCP_GATEWAY_PORT": "0"}) as gateway,
    ):
        await registry.logged("ready")
        yield Scene(registry, gateway, (await gateway.logged("ready"))["url"])


def used(process: ServiceProcess) -> tuple[float, float]:
    """CPU seconds, and MiB of resident memory."""
    victim = psutil.Process(process.pid)
    times = victim.cpu_times()
    return times.user + times.system, victim.memory_info().rss / MIB


async def honest(_: Incoming) -> Reply:
    return Reply(ANSWER)


async def test_computers_that_repeat_a_chunk_for_ever_keep_no_answer_of_another_office_back(nats_url: str) -> None:
    client = await nats.connect(nats_url)
    async with (
        scene(nats_url) as here,
        open_bus(BusConfig(url=nats_url)) as computer,
        connected(here.url) as anna,
        connected(here.url) as carl,
        connected(here.url, take=4 * MIB) as bob,
    ):
        await computer.serve(subjects.client_all("b", "pc"), honest, queue=subjects.OWNER_QUEUE)
        trickle = Trickle(client)
        for agent, name, office in ((anna, "anna", "a"), (carl, "carl", "c"), (bob, "bob", "b")):
            assert await agent.join("agent", name, office) == [True, None]
            if agent is not bob:
                await trickle.serve(subjects.client(office, "pc", "get_skills"))
        cpu, memory = used(here.gateway)
        attacks = [
            asyncio.create_task(agent.call("client:get_skills", {"agent": name, "computer": "pc"}))
            for agent, name in ((anna, "anna"), (carl, "carl")) * 4
        ]
        await eventually(lambda: trickle.sent > 8)
        for _ in range(5):
            answer: Any = await bob.call("client:get_skills", {"agent": "bob", "computer": "pc"}, timeout=15)
            assert len(answer["text"]) == 2 * MIB, "408 after 20 s before"
        cpu_after, memory_after = used(here.gateway)
        for attack in attacks:
            assert not attack.done()
            attack.cancel()
        await asyncio.wait(attacks)
        assert cpu_after - cpu < 10
        assert memory_after - memory < 100, "of the 256 MiB that were announced, nothing came"
    await client.close()


async def test_an_office_with_many_large_results_pushes_out_no_kept_result_of_another_one(nats_url: str) -> None:
    """Bob's repeat got `a2c_result_expired` before."""
    size = 3 * MIB

    async with (
        scene(nats_url) as here,
        connected(here.url, take=8 * MIB) as eve,
        connected(here.url) as evil,
        connected(here.url) as bob,
        connected(here.url) as box,
    ):
        seats = ((eve, "agent", "eve", "a"), (evil, "computer", "evil", "a"), (bob, "agent", "bob", "b"))
        for client, role, name, office in (*seats, (box, "computer", "box", "b")):
            assert await client.join(role, name, office) == [True, None]
        large = {"content": [{"type": "text", "text": "x" * size}], "isError": False}
        small = {"content": [{"type": "text", "text": "done"}], "isError": False}

        async def give_large(_: object) -> object:
            return large

        async def give_small(_: object) -> object:
            return small

        serve(evil, "client:tool_call", give_large)
        ran = serve(box, "client:tool_call", give_small)

        def call(agent: str, computer: str, number: int) -> dict[str, Any]:
            req_id = f"{number:032x}"
            return {
                "agent": agent,
                "req_id": req_id,
                "computer": computer,
                "tool_name": "t",
                "params": {},
                "timeout": 60,
            }

        mine = [await bob.call("client:tool_call", call("bob", "box", number)) for number in range(1, 9)]
        _, memory = used(here.gateway)
        for number in range(1, KEPT // size + 6):
            answer = await eve.call("client:tool_call", call("eve", "evil", number))
            assert len(answer["content"][0]["text"]) == size
        _, memory_after = used(here.gateway)
        again = [await bob.call("client:tool_call", call("bob", "box", number)) for number in range(1, 9)]
        assert again == mine
        assert len(ran) == 8
        gone = await eve.call("client:tool_call", call("eve", "evil", 1))
        assert gone["meta"]["a2c_result_expired"] is True
        assert memory_after - memory < 3 * KEPT / MIB


async def test_announcements_above_the_rate_of_a_member_are_429_and_reach_nobody(nats_url: str) -> None:
    """Each was told to the office before."""
    told: set[str] = set()

    async def hear(message: Msg) -> None:
        told.add((message.headers or {})[NOTIFICATION_ID])  # told again where a registry is slow: by the same id

    client = await nats.connect(nats_url)
    await client.subscribe(subjects.notify("here", "update_desktop"), cb=hear)
    await client.flush()
    async with (
        scene(nats_url, SMCP_REGISTRY_ROOM_EVENTS_PER_S="100") as here,
        raw_client(here.url) as loud,
        connected(here.url) as quiet,
        connected(here.url) as bob,
    ):
        assert await loud.join("computer", "loud", "here") == [True, None]
        assert await quiet.join("computer", "quiet", "here") == [True, None]
        assert await bob.join("computer", "bob", "there") == [True, None]
        answers: list[Any] = []
        for _ in range(UPDATES // AT_ONCE):
            sent = [await loud.event("server:update_desktop", '{"computer":"loud"}') for _ in range(AT_ONCE)]
            for other, name in ((quiet, "quiet"), (bob, "bob")):
                assert await other.call("server:update_desktop", {"computer": name}) is None
            answers += [await loud.ack(number) for number in sent]
        refused = [answer for answer in answers if answer is not None]
        assert {answer["code"] for answer in refused} == {429}
        assert len(refused) > UPDATES / 2, "none before"
        await client.drain()
        assert len(told) == UPDATES - len(refused) + UPDATES // AT_ONCE, "and those of the other Computer"
