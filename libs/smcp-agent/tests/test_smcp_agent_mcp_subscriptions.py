"""Many MCP clients of one office at once: what each may use, and what each is told. The Computers are scripted."""

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError

from smcp_agent import SmcpAgent
from smcp_agent.mcp.bridge import OfficeServer
from smcp_agent.mcp.resources import Context, OfficeResources
from smcp_testing.bridged import Bridged, shared_office
from smcp_testing.context_computer import WINDOW, computers_at
from smcp_testing.fake_gateway import fake_gateway, tool
from smcp_testing.waiting import eventually

TOOLS = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


async def watch(bridge: Bridged) -> None:
    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=WINDOW))
    await bridge.client.session.send_request(request, types.EmptyResult)


async def unwatch(bridge: Bridged) -> None:
    request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=WINDOW))
    await bridge.client.session.send_request(request, types.EmptyResult)


async def test_clients_of_both_eras_share_an_office() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with shared_office(gateway) as client:
            async with client("legacy") as old, client("2026-07-28") as new, client("legacy") as third:
                assert await asyncio.gather(*(each.text("echo") for each in (old, new, third))) == ["echo"] * 3
                async with new.client.listen(tools_list_changed=True) as changes:
                    await gateway.enter("blue", [tool("sing")])
                    async with asyncio.timeout(30):
                        await anext(aiter(changes))
                    await eventually(lambda: TOOLS in old.heard and TOOLS in third.heard)
            assert len(gateway.auths) == 1


async def test_a_client_that_does_not_read_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck: list[ServerSession] = []
    send = ServerSession.send_notification

    async def block_the_first(session: ServerSession, *sent: Any, **more: Any) -> None:
        stuck.append(session)
        if len(stuck) == 1:
            await asyncio.Event().wait()
        await send(session, *sent, **more)

    async with fake_gateway() as gateway, shared_office(gateway) as client:
        async with client("legacy") as first, client("legacy") as second:
            monkeypatch.setattr(ServerSession, "send_notification", block_the_first)
            for computer in ("red", "blue"):
                await gateway.enter(computer, [tool("echo")])
                await eventually(lambda: TOOLS in first.heard or TOOLS in second.heard)
                first.heard.clear()
                second.heard.clear()


async def test_a_client_that_is_gone_is_forgotten_with_what_it_watched() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        async with shared_office(gateway) as client:
            async with client("legacy") as first:
                async with client("legacy") as second:
                    for each in (first, second, second):
                        await watch(each)
                    assert red.subscribed == {WINDOW}
                assert red.subscribed == {WINDOW}
                await gateway.notify("notify:resources/updated", **red.says("resources/updated", uri=WINDOW))
                await eventually(lambda: UPDATED in first.heard)
            await eventually(lambda: red.subscribed == set())


async def test_a_client_hears_of_those_resources_only_that_it_watches_itself() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        async with shared_office(gateway) as client, client("legacy") as first, client("legacy") as second:
            await watch(first)
            await unwatch(second)
            assert red.subscribed == {WINDOW}
            await gateway.notify("notify:resources/updated", **red.says("resources/updated", uri=WINDOW))
            await eventually(lambda: UPDATED in first.heard)
            await gateway.enter("blue", [tool("echo")])
            await eventually(lambda: TOOLS in second.heard)
            assert UPDATED not in second.heard
            await unwatch(first)
            assert red.subscribed == set()


async def test_a_client_that_stops_watching_leaves_the_subscription_to_one_that_begins_to_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscribe = OfficeResources.subscribe
    second_asks, second_is_answered = asyncio.Event(), asyncio.Event()
    asking = 0

    async def hold(resources: OfficeResources, context: Context, uri: str) -> tuple[str, str]:
        nonlocal asking
        asking += 1
        is_first = asking == 1
        if not is_first:
            second_asks.set()
        found = await subscribe(resources, context, uri)
        await (second_asks if is_first else second_is_answered).wait()
        return found

    monkeypatch.setattr(OfficeResources, "subscribe", hold)
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        async with shared_office(gateway) as client, client("legacy") as first, client("legacy") as second:
            async with asyncio.timeout(30):
                watching = asyncio.create_task(watch(first))
                await eventually(lambda: red.subscribed)
                begins = asyncio.create_task(watch(second))
                await watching
                await unwatch(first)
                second_is_answered.set()
                await begins
            assert red.subscribed == {WINDOW}
            await unwatch(second)
            assert red.subscribed == set()


async def test_a_client_that_unsubscribes_before_it_is_subscribed_leaves_no_subscription() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        subscribe, asked, answered = red.answers["client:resources/subscribe"], asyncio.Event(), asyncio.Event()

        async def hold(request: Any) -> Any:
            asked.set()
            await answered.wait()
            return await subscribe(request)

        gateway.answers["client:resources/subscribe"] = hold
        async with shared_office(gateway) as client, client("legacy") as bridge:
            async with asyncio.timeout(30):
                watching = asyncio.create_task(watch(bridge))
                await asked.wait()
                await unwatch(bridge)
                answered.set()
                await watching
            assert (red.subscribed, bridge.agent.subscriptions()) == (set(), ())


async def test_two_clients_that_subscribe_at_once_at_different_computers_leave_one_subscription() -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        asked, answered = [asyncio.Event(), asyncio.Event()], asyncio.Event()
        subscribe = gateway.answers["client:resources/subscribe"]

        async def hold(request: Any) -> Any:
            asked[len(gateway.seen("client:resources/subscribe")) - 1].set()
            await answered.wait()
            return await subscribe(request)

        gateway.answers["client:resources/subscribe"] = hold
        computers = iter(["blue", "red"])
        turn = next(computers)
        async with shared_office(gateway, may_ask=lambda _, computer: computer == turn) as client:
            async with client("legacy") as first, client("legacy") as second, asyncio.timeout(30):
                watching = asyncio.create_task(watch(first))
                await asked[0].wait()
                turn = next(computers)
                others = asyncio.create_task(watch(second))
                await asked[1].wait()
                answered.set()
                await asyncio.gather(watching, others, return_exceptions=True)
                assert len(first.agent.subscriptions()) <= 1
            await eventually(lambda: (made["blue"].subscribed, made["red"].subscribed) == (set(), set()))


async def test_a_client_whose_subscription_is_refused_watches_nothing() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        red.refusal = {"code": -32603, "message": "not now"}
        async with shared_office(gateway) as client, client("legacy") as first, client("legacy") as second:
            with pytest.raises(MCPError, match="not now"):
                await watch(first)
            red.refusal = None
            await watch(second)
            await gateway.notify("notify:resources/updated", **red.says("resources/updated", uri=WINDOW))
            await eventually(lambda: UPDATED in second.heard)
            await unwatch(second)
            assert red.subscribed == set()
            assert UPDATED not in first.heard


async def test_the_server_ends_when_its_agent_was_closed() -> None:
    async with fake_gateway() as gateway:
        agent = SmcpAgent(gateway.url, office="office", name="bridge")
        await agent.open()
        async with asyncio.timeout(30):
            async with OfficeServer(agent).following():
                await agent.close()
                await asyncio.Event().wait()


async def test_resources_are_watched_only_over_a_connection_that_can_be_notified() -> None:
    async with fake_gateway() as gateway:
        computers_at(gateway, "red")
        async with shared_office(gateway) as client, client("2026-07-28") as bridge:
            with pytest.raises(MCPError, match="Method not found"):
                await watch(bridge)
