"""The unchanged published Agents on one gateway and our own Computer, on the bus."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import published_env
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import MIB, World, connected, gateway_world
from smcp_testing.mcp_servers.configs import stdio
from smcp_testing.waiting import OWNER_FIRST_S, eventually
from tests.interop.published import SELDOM, Kind, PublishedAgent, published_agent
from tests.interop.published_pair import LEASE_S, OFFICE

pytestmark = pytest.mark.timeout(published_env.INSTALL_S + 120)

SAID = 512 * 1024
BOX: dict[str, Any] = {"agent": "anna", "req_id": "1", "computer": "box"}
LATER: dict[str, dict[str, Any]] = {
    "client:get_skills": {},
    "client:get_skill": {"name": "wave"},
    "client:get_blob": {"blob_handle": "x", "chunk_offset": 0},
    "client:put_blob": {"chunk_offset": 0, "eof": True, "total_size": 1, "sha256": "0" * 64, "blob": "eA=="},
}


@asynccontextmanager
async def anna_and_a_native_box(
    nats_url: str, home: Path, kind: Kind
) -> AsyncIterator[tuple[World, PublishedAgent, Callable[[], list[str]]]]:
    log = home / "ran"
    servers = {"toolbox": stdio(log=log, forbidden_tools=["pid"])}
    async with (
        gateway_world(nats_url, gateways=2, lease_s=LEASE_S) as world,
        published_agent(home, world.gateways[1].url, OFFICE, "anna", kind=kind) as anna,
    ):
        await anna.ready()
        async with native_computer(world, OFFICE, "box", servers):
            await eventually(lambda: anna.heard("tools"))
            yield world, anna, lambda: log.read_text().splitlines() if log.exists() else []


def said(result: Any) -> str:
    text = result["content"][0]["text"]
    assert isinstance(text, str)
    return text


@pytest.mark.rule("answers.who.agent", "answers.errors.tool-call")
@pytest.mark.parametrize("kind", SELDOM)
async def test_it_lists_calls_times_out_and_cancels_the_tools_of_our_computer(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    async with anna_and_a_native_box(nats_url, tmp_path, kind) as (_, anna, ran):
        assert anna.heard("enter") == [{"office_id": OFFICE, "computer": "box"}]
        listed = [tool["name"] for tool in (await anna.run("get_tools_from_computer", "box"))["tools"]]
        assert anna.heard("tools") == [{"computer": "box", "tools": sorted(listed)}]
        assert "echo" in listed
        assert "pid" not in listed
        members = await anna.run("get_computers_in_office", OFFICE)
        assert [(member["role"], member["name"]) for member in members] == [("computer", "box")]
        assert set((await anna.run("get_config_from_computer", "box"))["servers"]) == {"toolbox"}
        assert said(await anna.call("box", "echo", text="深 \u2028")) == "深 \u2028"
        assert said(await anna.call("box", "echo", text="x" * SAID)) == "x" * SAID
        large = BOX | {"req_id": "large", "tool_name": "big", "params": {"size": 5 * MIB}, "timeout": 20}
        refused = await anna.ask("client:tool_call", payload=large)
        assert (refused["isError"], refused["meta"]["a2c_error"]["code"]) == (True, 413)  # its socket would not take it
        assert refused["meta"]["a2c_error"]["details"]["limit"] == 4 * MIB
        assert said(await anna.call("box", "big", size=5 * MIB)) == refused["content"][0]["text"]
        assert "no such Computer" in said(await anna.call("nobody", "echo", text="x"))  # one of the codes that it reads
        for tool in ("fail", "pid", "no_such_tool"):
            assert (await anna.call("box", tool))["isError"] is True
        many = await asyncio.gather(*(anna.call("box", "echo", text=str(number)) for number in range(20)))
        assert [said(result) for result in many] == [str(number) for number in range(20)]
        assert said(await anna.call("box", "sleep", seconds=0.5)) == "slept 0.5"
        # a plain event: the package's own call gives up after `timeout`, half a second after this answer at most
        request = BOX | {"tool_name": "sleep", "params": {"seconds": 60, "mark": "late"}, "req_id": "late"}
        late = await anna.ask("client:tool_call", payload=request | {"timeout": OWNER_FIRST_S})
        assert (late["isError"], late["meta"]["a2c_timeout"]) == (True, True)
        request = BOX | {"tool_name": "sleep", "params": {"seconds": 60, "mark": "c1"}, "timeout": 60}
        waiting = anna.ask("client:tool_call", payload=request)
        await eventually(lambda: "sleep c1" in ran())
        assert said(await anna.call("box", "echo", text="quick")) == "quick"
        assert not waiting.done()
        await anna.ask("server:tool_call_cancel", payload={"agent": "anna", "req_id": "1"})
        async with asyncio.timeout(30):
            assert (await waiting)["meta"]["a2c_cancelled"] is True
        await eventually(lambda: {"cancelled late", "cancelled c1"} <= set(ran()))
        for event, more in LATER.items():
            answer = await anna.ask(event, payload=BOX | more)
            assert (answer["code"], set(answer)) == (503, {"code", "message", "details"}), event


@pytest.mark.parametrize("kind", SELDOM)
async def test_it_gets_notifications_and_its_calls_are_cancelled_when_it_dies(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    async with anna_and_a_native_box(nats_url, tmp_path, kind) as (world, anna, ran):
        anna.told.clear()
        assert said(await anna.call("box", "add_tool", name="one_more")) == "one_more"
        await eventually(lambda: any("one_more" in told["tools"] for told in anna.heard("tools")))
        assert anna.heard("update_tool_list") == [{"computer": "box"}]
        async with connected(world.url) as visitor:
            await visitor.join("computer", "visitor", OFFICE)
            await eventually(lambda: anna.heard("enter") == [{"office_id": OFFICE, "computer": "visitor"}])
        await eventually(lambda: anna.heard("leave") == [{"office_id": OFFICE, "computer": "visitor"}])
        request = BOX | {"tool_name": "sleep", "params": {"seconds": 60, "mark": "d1"}, "timeout": 60}
        anna.ask("client:tool_call", payload=request).cancel()
        await eventually(lambda: "sleep d1" in ran())
        await anna.kill()
        await eventually(lambda: "cancelled d1" in ran())
        await eventually(lambda: [len(gateway.calls) for gateway in world.gateways] == [0, 0])
