"""Two gateways behind what spreads clients over them: sticky by the client's address, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import socketio

from bench import published_env
from smcp_agent import Reconnected, SmcpAgent
from smcp_bus.bus import Incoming, Reply
from smcp_testing.gateway_world import NAMESPACE, Client, World, gateway_world, reply
from smcp_testing.waiting import eventually, within
from tests.interop.balancer import Balancer, Choose, balancer, by_address, in_turn
from tests.interop.clients import POLLING, UPGRADE, WEBSOCKET, client_at
from tests.interop.published import KINDS, SELDOM, Kind, published_agent, published_computer

pytestmark = pytest.mark.timeout(published_env.INSTALL_S + 120)

OFFICE = "office"
TRY_S = 10
"""What is on its way to a connection that breaks is lost, and asked for again after so long."""
ADDRESSES = [f"127.0.0.{last}" for last in range(2, 8)]
BOX = {"agent": "anna", "req_id": "1", "computer": "box"}
CALL = BOX | {"tool_name": "echo", "params": {"text": "hi"}, "timeout": 5}


@asynccontextmanager
async def replicas(
    nats_url: str, choose: Choose, *, lease_s: float = 10.0, pings: bool = False
) -> AsyncIterator[tuple[World, Balancer]]:
    async with gateway_world(nats_url, gateways=2, lease_s=lease_s, pings=pings) as world:
        async with balancer([gateway.front.listener.port for gateway in world.gateways], choose) as front:
            yield world, front


async def echoing(verb: str, incoming: Incoming) -> Reply:
    return reply({"verb": verb, "content": [], "isError": False})


def spread(world: World) -> list[int]:
    return [len(gateway.sessions) for gateway in world.gateways]


async def transport_of(client: Client, wanted: str) -> None:
    await eventually(lambda: client.sio.transport() == wanted)


def joined_again(client: Client) -> bool:
    return len(client.told("joined")) == 2


async def refusals(url: str) -> None:
    """Another version is refused, whichever replica is asked, over both transports."""
    async with aiohttp.ClientSession() as http:
        for _ in range(4):
            async with http.get(f"{url}/socket.io/?EIO=4&transport=polling&a2c_version=9.9.9") as response:
                assert (response.status, response.headers["X-A2C-Error-Code"]) == (400, "4008")
                assert (await response.json())["client_version"] == "9.9.9"
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await http.ws_connect(f"{url}/socket.io/?EIO=4&transport=websocket&a2c_version=9.9.9")
            assert refused.value.status == 400
            assert refused.value.headers is not None
            assert refused.value.headers["X-A2C-Error-Code"] == "4008"


@pytest.mark.rule("answers.connect.sticky")
@pytest.mark.parametrize(
    ("choose", "transports", "settled"),
    [(by_address, UPGRADE, "websocket"), (by_address, POLLING, "polling"), (in_turn, WEBSOCKET, "websocket")],
    ids=["sticky-upgrade", "sticky-polling", "websocket-alone"],
)
async def test_clients_on_both_replicas_join_call_and_reconnect(
    nats_url: str, choose: Choose, transports: Sequence[str], settled: str
) -> None:
    async with replicas(nats_url, choose) as (world, front), AsyncExitStack() as stack:
        await refusals(front.url)
        computers = [f"box {number}" for number in range(4)]
        places = [("computer", name, OFFICE) for name in computers]
        clients = [
            await stack.enter_async_context(client_at(address, front.url, transports, rejoins=place))
            for address, place in zip(ADDRESSES, [*places, ("agent", "anna", OFFICE)], strict=False)
        ]
        anna = clients[-1]
        for client in clients:
            await transport_of(client, settled)
        assert min(spread(world)) >= 2
        for client in clients[:-1]:
            client.sio.on("client:get_tools", _tools, namespace=NAMESPACE)

        async def all_answer() -> bool:
            asked = (anna.call("client:get_tools", BOX | {"computer": name}, timeout=TRY_S) for name in computers)
            try:
                answers = await asyncio.gather(*asked)
            except socketio.exceptions.SocketIOError:
                return False  # what was on its way to a connection that broke is lost
            return answers == [{"tools": [], "req_id": "1", "from": name} for name in computers]

        assert await all_answer()
        before = spread(world)
        front.cut()
        if settled == "websocket":  # one that polls may have had no connection that could break
            for client in clients:
                await eventually(partial(joined_again, client))
                await transport_of(client, settled)
        await eventually(all_answer, timeout=4 * TRY_S)
        if choose is by_address:
            await eventually(lambda: spread(world) == before)


async def _tools(request: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [], "req_id": request["req_id"], "from": request["computer"]}


@pytest.mark.rule("answers.connect.sticky")
async def test_acks_and_errors_are_equal_over_every_transport(nats_url: str) -> None:
    async with replicas(nats_url, by_address) as (world, front):
        gave = {}
        for address, transports in zip(ADDRESSES, (POLLING, WEBSOCKET, UPGRADE), strict=False):
            async with (
                world.computer(OFFICE, "box", echoing),
                client_at(address, front.url, transports) as anna,
            ):
                await transport_of(anna, transports[-1])
                gave[transports] = [await anna.call(event, payload) for event, payload, _ in _conversation()]
            await eventually(lambda: spread(world) == [0, 0])
        assert gave[POLLING] == gave[WEBSOCKET] == gave[UPGRADE]
        for (event, _, expected), answer in zip(_conversation(), gave[POLLING], strict=True):
            assert _code(answer) == expected, (event, answer)


def _code(answer: Any) -> Any:
    """The code of an error, also of one in a refused join or leave; else the answer."""
    if isinstance(answer, list) and not answer[0]:
        return int(answer[1].split()[0])
    return answer["code"] if isinstance(answer, dict) and "code" in answer else answer


def _conversation() -> list[tuple[str, dict[str, Any], Any]]:
    """What the Agent `anna` says, and the answers or their codes."""
    place = {"role": "agent", "name": "anna", "office_id": OFFICE}
    return [
        ("client:get_tools", BOX, 4103),
        ("server:join_office", {"role": "agent"}, 400),
        ("server:join_office", place, [True, None]),
        ("server:join_office", place, [True, None]),
        ("server:join_office", place | {"name": "another"}, 403),
        ("client:tool_call", CALL, {"verb": "tool_call", "content": [], "isError": False}),
        ("client:tool_call", CALL | {"timeout": 0}, 400),
        ("client:tool_call", CALL | {"computer": "nobody"}, 404),
        ("client:Get Tools", BOX, 400),
        ("client:get_skills", BOX, {"verb": "get_skills", "content": [], "isError": False}),
        ("client:get_tools", BOX | {"more": "x" * 100_000}, 413),
        ("server:update_config", {"computer": "box"}, 403),
        ("server:tool_call_cancel", {"agent": "anna", "req_id": "1"}, None),
        ("server:leave_office", {"office_id": "another"}, 4103),
        ("server:leave_office", {"office_id": OFFICE}, [True, None]),
    ]


@pytest.mark.rule("answers.rooms.published-rejoin")
@pytest.mark.parametrize("kind", KINDS)
async def test_published_clients_behind_a_sticky_proxy_reconnect_and_join_again(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    async with (
        replicas(nats_url, by_address) as (world, front),
        published_agent(tmp_path, front.url, OFFICE, "anna", kind=kind, tcp=_from("127.0.0.1")) as anna,
        published_computer(tmp_path, front.url, OFFICE, "box", tcp=_from("127.0.0.2")) as box,
    ):
        await asyncio.gather(anna.ready(), box.ready())
        assert spread(world) == [1, 1]
        assert (await anna.call("box", "tools__echo", text="one"))["content"][0]["text"] == "one"
        assert await anna.ask("transport") == "websocket"
        front.cut()
        await eventually(lambda: anna.heard("connected") == [None], timeout=30)

        async def called() -> bool:
            answer = await anna.call("box", "tools__echo", text="two")
            return bool(answer["content"] and answer["content"][0]["text"] == "two")

        await eventually(called, timeout=30)
        await eventually(lambda: spread(world) == [1, 1])


@pytest.mark.rule("answers.rooms.moving.drain")
@pytest.mark.parametrize("kind", SELDOM)
async def test_published_clients_move_from_a_stopping_gateway_without_a_leave(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    async with gateway_world(nats_url, lease_s=10.0) as staying, AsyncExitStack() as stack:
        leaving = await stack.enter_async_context(gateway_world(nats_url, registry=False, lease_s=10.0, drain_s=20.0))
        ports = [world.gateways[0].front.listener.port for world in (leaving, staying)]
        stopping: list[asyncio.Task[None]] = []
        async with (
            client_at("127.0.0.2", staying.url, WEBSOCKET, rejoins=("computer", "watcher", OFFICE)) as watcher,
            balancer(ports, lambda _address, _number: len(stopping)) as front,
            published_agent(tmp_path, front.url, OFFICE, "anna", kind=kind, tcp={}) as anna,
            published_computer(tmp_path, front.url, OFFICE, "box", tcp={}) as box,
        ):
            await asyncio.gather(anna.ready(), box.ready())
            await eventually(lambda: len(watcher.told("notify:enter_office")) == 2)
            assert spread(leaving) == [2]
            watcher.events.clear()
            call = asyncio.create_task(anna.call("box", "tools__slow", seconds=2))
            await eventually((tmp_path / "journal").exists)
            stopping.append(asyncio.create_task(stack.aclose()))
            assert (await call)["content"][0]["text"] == "slept"
            await eventually(lambda: spread(staying) == [3], timeout=30)

            async def called() -> bool:
                answer = await anna.call("box", "tools__echo", text="there")
                return bool(answer["content"] and answer["content"][0]["text"] == "there")

            await eventually(called, timeout=30)
            assert anna.heard("connected") == [None]
            async with asyncio.timeout(30):
                await stopping[0]
            assert [event for event, _ in watcher.events if event.startswith("notify:")] == []


@pytest.mark.rule("answers.connect.sticky")
async def test_our_agent_works_without_a_sticky_proxy(nats_url: str) -> None:
    async with replicas(nats_url, in_turn) as (world, front), world.computer(OFFICE, "box", echoing):
        async with SmcpAgent(front.url, office=OFFICE, name="anna") as agent:
            assert (await agent.call_tool("box", "echo")).is_error is False
            for round_ in range(3):
                stream = agent.events()
                front.cut()
                async with asyncio.timeout(30):
                    async for event in stream:
                        if isinstance(event, Reconnected):
                            break
                assert (await agent.call_tool("box", "echo")).is_error is False, round_
        assert min(front.carried) >= 1


@pytest.mark.rule("answers.connect.unknown-session")
async def test_polling_without_stickiness_gets_a_400_that_says_why(nats_url: str, tmp_path: Path) -> None:
    async with (
        replicas(nats_url, in_turn, lease_s=2.0, pings=True) as (world, front),  # silent sessions end soon
        aiohttp.ClientSession() as http,
        published_agent(tmp_path, front.url, OFFICE, "anna", tcp=_from("127.0.0.2")) as anna,
    ):
        for transports in (POLLING, UPGRADE):
            with pytest.raises(socketio.exceptions.ConnectionError):
                async with within(20), client_at("127.0.0.3", front.url, transports, wait_s=1):
                    pass
        async with asyncio.timeout(60):
            said = await anna.began
        assert said["raised"] == "ConnectionError"
        address = f"{world.gateways[0].url}/socket.io/?EIO=4&transport=polling&sid=elsewhere"
        for method in ("GET", "POST"):
            async with http.request(method, address) as response:
                assert response.status == 400
                body = await response.json()
            assert body["code"] == 400
            assert body["details"] == {"field": "sid"}
            assert "sticky" in body["message"]
            assert "elsewhere" not in body["message"]
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(address.replace("=polling", "=websocket"))
        assert refused.value.status == 400
        await eventually(lambda: spread(world) == [0, 0])


def _from(address: str) -> dict[str, Any]:
    return {"local_addr": [address, 0], "force_close": True}
