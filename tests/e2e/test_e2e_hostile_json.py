"""Members, Computers and MCP servers attack processes with JSON that is expensive to read; another office goes on.

Each test names what the same attack took before values were counted in the bytes.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from smcp_testing.gateway_world import NAMESPACE, connected
from smcp_testing.mcp_servers import configs
from smcp_testing.raw_client import RawClient, raw_client
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually
from tests.e2e.hostile.bystander import Bystander, Cost, answer_skills

BIN: Final = Path(sys.executable).parent
LISTS: Final = '{"computer":"box","params":{"v":[' + "[]," * 10_000_000 + "[]]}}"
NUMBERS: Final = '{"computer":"box","params":{"v":[' + "123456789012345678901," * 1_300_000 + "1]}}"


@dataclass
class Scene:
    gateway: ServiceProcess
    url: str
    bob: Bystander
    """A member of another office, where a Computer answers him."""


@asynccontextmanager
async def scene(nats_url: str) -> AsyncIterator[Scene]:
    common = {"SMCP_NATS_URL": nats_url, "SMCP_LOG_FORMAT": "json", "SMCP_LEASE_S": "5"}
    async with (
        service_process(BIN / "smcp-registry", env=common) as registry,
        service_process(BIN / "smcp-gateway", env=common | {"SMCP_GATEWAY_PORT": "0"}) as gateway,
    ):
        await registry.logged("ready")
        url = (await gateway.logged("ready"))["url"]
        async with connected(url) as bob, connected(url) as box:
            box.sio.on("client:get_skills", answer_skills, namespace=NAMESPACE)
            assert await bob.join("agent", "bob", "there") == [True, None]
            assert await box.join("computer", "box", "there") == [True, None]
            yield Scene(gateway, url, await Bystander.ready(bob, "bob"))
            assert not bob.gone.is_set()
            assert bob.told("notify:leave_office") == []


async def costs(scene: Scene, attack: Callable[[], Awaitable[object]], *, of: ServiceProcess | None = None) -> Cost:
    return await scene.bob.costs((of or scene.gateway).pid, attack)


async def refused(client: RawClient, body: str, code: int) -> None:
    answer = await client.ack(await client.event("client:tool_call", body))
    assert answer["code"] == code, answer


async def test_requests_of_millions_of_values_are_refused_for_little(nats_url: str) -> None:
    async with scene(nats_url) as here, raw_client(here.url) as stranger, raw_client(here.url) as eve:
        await eve.join("agent", "eve", "here")

        async def attack() -> None:
            for body in (LISTS, LISTS[:7_500_000]):
                await refused(stranger, body, 413 if body == LISTS else 4103)
                await refused(eve, body, 413)
            await refused(eve, NUMBERS, 413)

        cost = await costs(here, attack)
        assert cost.cpu_s < 5, "9.5 s each before, of which nobody else had any"
        assert cost.peak_mib < 300, "1,000 MiB before"


async def test_an_answer_of_millions_of_lists_costs_another_office_little(nats_url: str) -> None:
    async with scene(nats_url) as here, raw_client(here.url) as evil, connected(here.url) as eve:
        await evil.join("computer", "evil", "here")
        await eve.join("agent", "eve", "here")
        asked = {"agent": "eve", "req_id": "1", "computer": "evil"}

        async def attack() -> None:
            asking = asyncio.create_task(eve.call("client:get_tools", asked))
            await evil.asked("client:get_tools")
            await evil.socket.send_str('43/smcp,1[{"tools":[' + "[]," * 10_000_000 + "[]]}]")
            assert (await asking)["details"]["max_values"] == 200_000

        cost = await costs(here, attack)
        assert cost.cpu_s < 3, "9 s before"
        assert cost.peak_mib < 300, "1,000 MiB before"


async def test_large_answers_of_escaped_text_cost_another_office_little(nats_url: str) -> None:
    """With `_meta`, or as an error, 30 MB of it held the gateway for 0.15 s in one go."""
    async with scene(nats_url) as here, raw_client(here.url) as evil, raw_client(here.url) as eve:
        await evil.join("computer", "evil", "here")
        await eve.join("agent", "eve", "here")
        text = "\\n" * 15_000_000
        answers = ('"content":[{"type":"text","text":"%s"}],"_meta":{}', '"code":404,"message":"%s"')
        asked = {"agent": "eve", "computer": "evil", "tool_name": "t", "params": {}, "timeout": 60}

        async def attack() -> None:
            for number, answer in enumerate(answers, start=1):
                asking = await eve.event("client:tool_call", json.dumps({**asked, "req_id": str(number)}))
                await evil.asked("client:tool_call")
                evil.told.clear()
                await evil.socket.send_str(f"43/smcp,{number}[{{{answer % text}}}]")
                refused = await eve.ack(asking)
                assert refused["code"] == (413 if number == 1 else 500), refused

        cost = await costs(here, attack)
        assert cost.cpu_s < 4
        assert cost.peak_mib < 300


async def test_an_mcp_server_that_answers_with_millions_of_lists_costs_its_computer_little(
    nats_url: str, tmp_path: Path
) -> None:
    config = tmp_path / "computer.json"
    config.write_text(json.dumps({"servers": {"raw": configs.stdio("raw")}}))
    env = {"SMCP_NATS_URL": nats_url, "SMCP_LOG_FORMAT": "json", "SMCP_LEASE_S": "5"}
    run = ("run", "--config", config, "--office", "here", "--name", "lab")
    async with (
        scene(nats_url) as here,
        service_process(BIN / "smcp-computer", *run, env=env) as computer,
        connected(here.url) as eve,
    ):
        await computer.logged("in the office 'here' as 'lab'")
        await eve.join("agent", "eve", "here")
        text = '{"jsonrpc":"2.0","id":$ID,"result":{"content":[' + "[]," * 2_500_000 + "[]]}}"
        call = {"agent": "eve", "req_id": "1", "computer": "lab", "tool_name": "say", "params": {"text": text}}

        async def is_ready() -> bool:
            asked = {"agent": "eve", "req_id": "tools", "computer": "lab"}
            return any(tool["name"] == "say" for tool in (await eve.call("client:get_tools", asked))["tools"])

        async def attack() -> None:
            answer = await eve.call("client:tool_call", {**call, "timeout": 60})
            assert answer.get("details", {}).get("max_values") == 200_000, answer

        await eventually(is_ready)

        cost = await costs(here, attack, of=computer)
        assert cost.cpu_s < 5, "more than 10 s before; the registry took its members for gone"
        assert cost.peak_mib < 400, "1,900 MiB before"
        assert eve.told("notify:leave_office") == []
