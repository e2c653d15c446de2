"""Unchanged clients of the published package, both its Agent and its Computer, through two gateways."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench import published_env
from smcp_testing.gateway_world import World, gateway_world
from smcp_testing.waiting import eventually
from tests.interop.published import PublishedAgent, PublishedComputer, published_agent, published_computer

pytestmark = pytest.mark.timeout(published_env.INSTALL_S + 120)  # the first test may have to make the environment

OFFICE = "office"


@asynccontextmanager
async def couple(
    nats_url: str, home: Path, *, computer: str = "box"
) -> AsyncIterator[tuple[World, PublishedAgent, PublishedComputer]]:
    """The Agent is on the first gateway, its Computer on the second."""
    async with (
        gateway_world(nats_url, gateways=2) as world,
        published_agent(home, world.gateways[0].url, OFFICE, "anna") as anna,
        published_computer(home, world.gateways[1].url, OFFICE, computer) as box,
    ):
        yield world, anna, box


async def test_join_list_tools_config_and_calls(nats_url: str, tmp_path: Path) -> None:
    async with couple(nats_url, tmp_path) as (_, anna, _box):
        members = await anna.ask("list")
        assert ("computer", "box", "0.4.0") in {
            (member["role"], member["name"], member.get("a2c_version")) for member in members
        }
        tools = await anna.ask("tools", computer="box")
        assert {tool["name"] for tool in tools["tools"]} == {
            f"tools__{tool}" for tool in ("echo", "blow_up", "fail", "slow")
        }
        config = await anna.ask("config", computer="box")
        assert len(config["servers"]) == 1
        result = await anna.call("box", "echo", text="深 \u2028")
        assert result["isError"] is False
        assert result["content"][0]["text"] == "深 \u2028"
        assert (await anna.call("box", "echo", text="x" * 512 * 1024))["content"][0]["text"] == "x" * 512 * 1024
        assert (await anna.call("box", "fail"))["isError"] is True
        assert (await anna.call("box", "no_such_tool"))["isError"] is True
        many = await asyncio.gather(*(anna.call("box", "echo", text=str(number)) for number in range(20)))
        assert [result["content"][0]["text"] for result in many] == [str(number) for number in range(20)]
        both = await asyncio.gather(anna.call("box", "slow", seconds=1.5), anna.call("box", "echo", text="quick"))
        assert [result["content"][0]["text"] for result in both] == ["slept", "quick"]
        missing = await anna.call("nobody", "echo", text="")
        assert missing["isError"] is True


async def test_a_forbidden_tool_a_time_out_and_a_cancel(nats_url: str, tmp_path: Path) -> None:
    async with couple(nats_url, tmp_path, computer="strict") as (world, anna, _):
        assert (await anna.call("strict", "blow_up", size=1))["isError"] is True
        result = await anna.call("strict", "slow", seconds=60, timeout=2)
        assert result["isError"] is True
        assert result["meta"]["a2c_timeout"] is True
        journal = tmp_path / "journal"
        await eventually(lambda: journal.exists() and journal.read_text().count("cancelled") == 1, timeout=10)
        request = {
            "agent": "anna", "req_id": "c1", "computer": "strict", "tool_name": "tools__slow",
            "params": {"seconds": 60}, "timeout": 60,
        }  # fmt: skip
        waiting = anna.ask("client:tool_call", payload=request)
        await eventually(lambda: sum(gateway.computers.running for gateway in world.gateways) == 1)
        await anna.ask("server:tool_call_cancel", payload={"agent": "anna", "req_id": "c1"})
        async with asyncio.timeout(5):
            assert (await waiting)["meta"]["a2c_cancelled"] is True
        await eventually(lambda: journal.read_text().count("cancelled") == 2, timeout=10)
        assert sum(gateway.computers.running for gateway in world.gateways) == 0


async def test_events_that_our_pages_do_not_have(nats_url: str, tmp_path: Path) -> None:
    async with couple(nats_url, tmp_path) as (_, anna, box):
        names = {"agent": "anna", "req_id": "1", "computer": "box"}
        skills = await anna.ask("client:get_skills", payload=names)
        assert "skills" in skills
        refused = await anna.ask("client:get_resources", payload=names | {"mcp_server": "nobody"})
        assert refused["code"] == 4014
        assert refused["mcp_server"] == "nobody"
        refused = await anna.ask("client:get_skill", payload=names | {"name": "nobody"})
        assert isinstance(refused["code"], int)
        refused = await anna.ask("client:get_blob", payload=names | {"blob_handle": "x", "chunk_offset": 0})
        assert refused["code"] == 4018
        for what in ("config", "tool_list", "desktop", "skills", "what_comes_later"):  # the Agent keeps what it knows
            await box.do(f"update {what}")
        await eventually(lambda: anna.told == [("notify:update_what_comes_later", {"computer": "box"})], timeout=10)


async def test_a_switch_and_a_death_in_the_middle(nats_url: str, tmp_path: Path) -> None:
    async with couple(nats_url, tmp_path) as (_, anna, box):
        await box.do("switch another")
        assert (await anna.call("box", "echo", text=""))["isError"] is True
        await box.do("switch office")
        assert (await anna.call("box", "echo", text="back"))["content"][0]["text"] == "back"
        request = {
            "agent": "anna", "req_id": "d1", "computer": "box", "tool_name": "tools__slow", "params": {"seconds": 60},
            "timeout": 60,
        }  # fmt: skip
        waiting = anna.ask("client:tool_call", payload=request)
        await anna.call("box", "echo", text="")
        await box.kill()
        async with asyncio.timeout(5):
            answer = await waiting
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True}
