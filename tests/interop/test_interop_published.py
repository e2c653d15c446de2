"""Unchanged clients of the published package, both its Agent and its Computer, through two gateways."""

import asyncio
from pathlib import Path

import pytest

from bench import published_env
from smcp_gateway.rooms import memberships
from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.waiting import OWNER_FIRST_S, eventually
from tests.interop.published import KINDS, READY_S, SELDOM, TOOLS, Kind, published_agent
from tests.interop.published_pair import OFFICE, couple

pytestmark = pytest.mark.timeout(published_env.INSTALL_S + 120)  # the first test may have to make the environment

LISTED = [f"tools__{tool}" for tool in TOOLS]
SAID = 512 * 1024


@pytest.mark.rule("answers.calls.socketio-computer")
@pytest.mark.parametrize("kind", KINDS)
async def test_the_published_pair_joins_lists_tools_and_config_and_calls(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    async with couple(nats_url, tmp_path, kind) as both:
        anna = both.anna
        members = await anna.run("get_computers_in_office", OFFICE)
        assert [(member["role"], member["name"], member["a2c_version"]) for member in members] == [
            ("computer", "box", "0.4.0")
        ]
        tools = await anna.run("get_tools_from_computer", "box")
        assert sorted(tool["name"] for tool in tools["tools"]) == LISTED
        config = await anna.run("get_config_from_computer", "box")
        assert [server["name"] for server in config["servers"].values()] == ["tools"]
        result = await anna.call("box", "tools__echo", text="深 \u2028")
        assert result["isError"] is False
        assert result["content"][0]["text"] == "深 \u2028"
        assert (await anna.call("box", "tools__echo", text="x" * SAID))["content"][0]["text"] == "x" * SAID
        assert (await anna.call("box", "tools__fail"))["isError"] is True
        forbidden = await anna.call("box", "tools__blow_up", size=1)
        assert forbidden["isError"] is True
        assert (await anna.call("box", "tools__no_such_tool"))["isError"] is True
        many = await asyncio.gather(*(anna.call("box", "tools__echo", text=str(number)) for number in range(20)))
        assert [result["content"][0]["text"] for result in many] == [str(number) for number in range(20)]
        slow = both.slow_call("s1")
        await eventually(lambda: both.journal() == ["slow"])
        assert (await anna.call("box", "tools__echo", text="quick"))["content"][0]["text"] == "quick"
        assert not slow.done()
        assert (await anna.call("box", "tools__slow", seconds=0.5))["content"][0]["text"] == "slept"
        missing = await anna.call("nobody", "tools__echo", text="")
        assert missing["isError"] is True
        assert "[404]" in missing["content"][0]["text"]


@pytest.mark.rule("answers.calls.cancel.socketio")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_timeout_and_a_cancel_reach_the_tool(nats_url: str, tmp_path: Path, kind: Kind) -> None:
    async with couple(nats_url, tmp_path, kind) as both:
        # a plain event: the package's own call gives up after `timeout`, half a second after this answer at most
        result = await both.slow_call("late", timeout=OWNER_FIRST_S)
        assert result["isError"] is True
        assert result["meta"]["a2c_timeout"] is True
        await eventually(lambda: both.journal() == ["slow", "cancelled"])
        waiting = both.slow_call("c1")
        await eventually(lambda: len(both.journal()) == 3)
        await both.anna.ask("server:tool_call_cancel", payload={"agent": "anna", "req_id": "unknown"})
        assert await both.anna.ask("server:tool_call_cancel", payload={"agent": "anna", "req_id": "c1"}) is None
        async with asyncio.timeout(30):
            assert (await waiting)["meta"]["a2c_cancelled"] is True
        await eventually(lambda: both.journal() == ["slow", "cancelled"] * 2)
        await eventually(lambda: both.running == 0)


@pytest.mark.rule("answers.errors.4103")
@pytest.mark.parametrize("kind", SELDOM)
async def test_a_computer_switches_offices_and_a_taken_name_is_refused(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    async with couple(nats_url, tmp_path, kind) as both, connected(both.world.url) as rival:
        anna, box = both.anna, both.box
        assert await rival.join("computer", "box", "taken") == [True, None]
        said = await box.do("switch taken")
        assert [line for line in said if line.startswith("refused: ")]
        assert (await anna.call("box", "tools__echo", text="still there"))["isError"] is False
        await box.do("switch another")
        await eventually(lambda: anna.heard("leave") == [{"office_id": OFFICE, "computer": "box"}])
        assert (await anna.call("box", "tools__echo", text=""))["isError"] is True
        await box.do(f"switch {OFFICE}")
        await eventually(lambda: anna.heard("enter") == [{"office_id": OFFICE, "computer": "box"}] * 2)
        assert (await anna.call("box", "tools__echo", text="back"))["content"][0]["text"] == "back"
        await box.do(f"leave {OFFICE}")
        await eventually(lambda: len(anna.heard("leave")) == 2)
        assert await anna.run("get_computers_in_office", OFFICE) == []
        await anna.ask("leave", office=OFFICE)  # it does not wait for the answer
        after = await anna.ask("client:get_tools", payload={"agent": "anna", "req_id": "1", "computer": "box"})
        assert after["code"] == 4103


@pytest.mark.rule("answers.calls.death.socketio")
@pytest.mark.parametrize("kind", SELDOM)
async def test_a_call_ends_when_its_agent_or_computer_dies(nats_url: str, tmp_path: Path, kind: Kind) -> None:
    async with couple(nats_url, tmp_path, kind) as both, connected(both.world.url) as bob:
        both.slow_call("d1").cancel()
        await eventually(lambda: both.journal() == ["slow"])
        await both.anna.kill()
        await eventually(lambda: both.journal() == ["slow", "cancelled"])
        await eventually(lambda: both.running == 0)
        assert await bob.join("agent", "bob", OFFICE) == [True, None]
        request = {
            "agent": "bob", "req_id": "d2", "computer": "box", "tool_name": "tools__slow", "params": {"seconds": 60},
            "timeout": 60,
        }  # fmt: skip
        waiting = asyncio.create_task(bob.call("client:tool_call", request, timeout=30))
        await eventually(lambda: len(both.journal()) == 3)
        await both.box.kill()
        async with asyncio.timeout(30):
            answer = await waiting
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True, "gone": True}
        await eventually(lambda: bob.told("notify:leave_office") == [{"office_id": OFFICE, "computer": "box"}])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_is_cancelled_at_once_when_its_agent_disconnects(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr(memberships, "ABSENT_S", 600.0)  # it does not wait for it
    async with couple(nats_url, tmp_path, kind) as both:
        both.slow_call("g1").cancel()
        await eventually(lambda: both.journal() == ["slow"])
        await both.anna.ask("disconnect")
        await eventually(lambda: both.journal() == ["slow", "cancelled"])
        await eventually(lambda: [len(gateway.calls) for gateway in both.world.gateways] == [0, 0])
        await eventually(lambda: both.running == 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_of_another_protocol_version_reads_why_it_is_refused(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    async with (
        gateway_world(nats_url, registry=False) as world,
        published_agent(tmp_path, world.url, OFFICE, "anna", kind=kind, version="0.5.0") as anna,
    ):
        async with asyncio.timeout(READY_S):
            said = await anna.began
        assert said["raised"] == "ProtocolVersionError"
        assert {name: said[name] for name in ("client_version", "min_supported", "max_supported")} == {
            "client_version": "0.5.0",
            "min_supported": "0.2.0",
            "max_supported": "0.4.999",
        }
