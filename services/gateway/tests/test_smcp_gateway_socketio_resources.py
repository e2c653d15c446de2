"""Desktop, finder and resources of a Computer on Socket.IO, asked for by an Agent on another gateway."""

from functools import partial
from typing import Any

import pytest

from smcp_bus.registry_client import RegistryClient
from smcp_testing.gateway_world import MIB, NAMESPACE, Client, connected
from smcp_testing.leaving_gateway import gone, in_time, two_gateways
from smcp_testing.profiles import scaled
from smcp_testing.socketio_pair import BOX, OFFICE, Couple, couple, query, serve
from smcp_testing.waiting import eventually

URI = "dpe://盒子/a b"
UPDATED = "notify:resources/updated"


def envelope(method: str, params: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "id": "n°1", "method": method} | ({} if params is None else {"params": params})
    return {"roomId": OFFICE, "computerId": BOX, "agent": "anna", "payload": payload, **more}


COMPLETE = {
    "ref": {"type": "ref/resource", "uri": "dpe://host/{doc_ref}?page={page_index}"},
    "argument": {"name": "page_index", "value": "1"},
    "context": {"arguments": {"doc_ref": "a b"}},
}
ASKED: dict[str, dict[str, Any]] = {
    "client:get_desktop": query() | {"desktop_size": 3, "window": "window://h/深"},
    "client:get_finder": query() | {"keywords": ["x", "深"], "file_type": "pdf", "offset": 2, "limit": 7},
    "client:resources/list": envelope("resources/list", {"cursor": "c", "unknown": [1]}, serverId="files"),
    "client:resources/read": envelope("resources/read", {"uri": URI}, req_id="r7", unknown={"x": None}),
    "client:resources/templates/list": envelope("resources/templates/list"),
    "client:resources/subscribe": envelope("resources/subscribe", {"uri": URI}),
    "client:resources/unsubscribe": envelope("resources/unsubscribe", {"uri": URI}, serverId=None),
    "client:completion/complete": envelope("completion/complete", COMPLETE),
    "client:prompts/list": envelope("prompts/list", {"cursor": "c"}),
    "client:prompts/get": envelope("prompts/get", {"name": "greet", "arguments": {"who": "深"}}),
}


def updated(uri: str) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
    return {"roomId": OFFICE, "computerId": BOX, "payload": payload}


@pytest.mark.rule("computer.resources.server.routing", "computer.resources.events.direction")
async def test_desktop_finder_and_resource_requests_reach_a_socketio_computer_unchanged(nats_url: str) -> None:
    async with couple(nats_url) as pair:
        for event, request in ASKED.items():
            answer = {"payload": {"result": {"unknown": [None, 1.5, "深"]}}, "desktops": ["window://h/深\n\nx"], "n": 1}

            async def tell(_: dict[str, Any], answer: dict[str, Any] = answer) -> Any:
                return answer

            asked = serve(pair.box, event, tell)
            assert await pair.anna.call(event, request) == answer
            assert asked == [request]


@pytest.mark.rule("answers.resources.own-office")
async def test_an_envelope_for_another_office_reaches_nobody(nats_url: str) -> None:
    async with couple(nats_url) as pair, connected(pair.owner.url) as far:
        assert await far.join("computer", "far", "other") == [True, None]

        async def never(_: dict[str, Any]) -> Any:
            return {}

        for event, request in ASKED.items():
            asked = [serve(client, event, never) for client in (pair.box, far)]
            if "roomId" in request:
                for room in ("other", f"{OFFICE}\u200b"):
                    refused = await pair.anna.call(event, request | {"roomId": room})
                    assert (refused["code"], refused["details"]) == (403, {"field": "roomId"})
                    refused = await pair.anna.call(event, request | {"roomId": room, "computerId": "far"})
                    assert (refused["code"], refused["details"]) == (403, {"field": "roomId"})
            name = "computerId" if "roomId" in request else "computer"
            for computer in ("far", "nobody"):
                refused = await pair.anna.call(event, request | {name: computer})
                assert (refused["code"], refused["details"]) == (404, {"computer": computer})
            assert asked == [[], []]


async def test_its_desktop_and_finder_updates_reach_the_whole_office(nats_url: str) -> None:
    async with couple(nats_url) as pair, connected(pair.owner.url) as mate:
        assert await mate.join("computer", "mate", OFFICE) == [True, None]
        for event in ("update_desktop", "update_finder"):
            payload = {"computer": BOX, "unknown": ["深"]}
            assert await pair.box.call(f"server:{event}", payload) is None
            for client in (pair.anna, mate):
                await eventually(partial(client.told, f"notify:{event}"))
                assert client.told(f"notify:{event}") == [payload]
            assert pair.box.told(f"notify:{event}") == []


async def contents(pair: Couple, size: int) -> Any:
    """What the Agent gets where the Computer gives a blob of so many bytes."""
    blob = {"uri": URI, "mimeType": "application/pdf", "blob": "A" * size}

    async def read(request: dict[str, Any]) -> Any:
        answer = {"jsonrpc": "2.0", "id": request["payload"]["id"], "result": {"contents": [blob]}}
        return {"roomId": OFFICE, "computerId": BOX, "payload": answer}

    serve(pair.box, "client:resources/read", read)
    answer = await pair.anna.call("client:resources/read", ASKED["client:resources/read"], timeout=60)
    return answer["payload"]["result"]["contents"] == [blob] if "payload" in answer else answer


@pytest.mark.rule("answers.resources.large")
async def test_large_contents_arrive_whole_or_are_413_by_the_clients_limit(
    nats_url: str,
) -> None:
    async with couple(nats_url, auth={"max_message": 33 * MIB}, take=34 * MIB, lease_s=60.0) as pair:
        assert await contents(pair, scaled(ci=12, soak=31) * MIB) is True
    async with couple(nats_url, lease_s=60.0) as pair:
        assert await contents(pair, 3 * MIB) is True
        refused = await contents(pair, 5 * MIB)
        assert refused["code"] == 413
        assert refused["details"]["limit"] == 4 * MIB
        assert await contents(pair, 1) is True  # its socket stays


@pytest.mark.rule("answers.resources.large")
async def test_contents_above_the_limit_of_the_bus_are_413_with_the_limit(nats_url: str) -> None:
    takes = {"max_message": 33 * MIB}
    async with couple(nats_url, auth=takes, take=34 * MIB, lease_s=60.0, max_payload=2 * MIB) as pair:
        assert await contents(pair, 2 * MIB - 1024) is True
        refused = await contents(pair, 2 * MIB)
        assert refused["code"] == 413
        assert refused["details"]["limit"] == 2 * MIB
        assert await contents(pair, 1) is True


async def listed(client: Client, name: str, asker: str) -> Any:
    room = await client.call("server:list_room", {"agent": asker, "req_id": "1", "office_id": OFFICE})
    return next(session for session in room["sessions"] if session["name"] == name).get("capabilities")


FLAGS = {"resources": {"subscribe": True, "listChanged": False}}
BY_SERVER = {
    "resources": {
        "aggregate": {"subscribe": True, "listChanged": True},
        "byServer": {"excel": {"subscribe": True, "listChanged": False}, "erp": {"subscribe": False}},
    },
    "later": {"x": 1},
}


@pytest.mark.rule("computer.resources.{server.capabilities,capabilities.forms}", "answers.resources.capabilities")
@pytest.mark.parametrize("capabilities", [FLAGS, BY_SERVER, {}], ids=["flags", "by server", "none"])
async def test_its_capabilities_are_shown_from_its_join_on_and_when_they_change(
    nats_url: str, capabilities: dict[str, Any]
) -> None:
    async with couple(nats_url) as pair, connected(pair.owner.url) as car:
        join = {"role": "computer", "name": "car", "office_id": OFFICE, "capabilities": capabilities}
        assert await car.call("server:join_office", join) == [True, None]
        await eventually(lambda: len(pair.anna.told("notify:enter_office")) >= 1)

        async def shown(name: str, can: Any) -> bool:
            return bool(await listed(pair.anna, name, "anna") == can)

        await eventually(partial(shown, "car", capabilities))
        assert await shown(BOX, None)
        update = {"computer": BOX, "capabilities": capabilities}
        assert await pair.box.call("server:update_capabilities", update) is None
        for client in (pair.anna, car):
            await eventually(partial(client.told, "notify:update_capabilities"))
            assert client.told("notify:update_capabilities") == [update]
        await eventually(partial(shown, BOX, capabilities))


async def test_a_computer_that_the_registry_lost_keeps_the_capabilities_that_it_updated(nats_url: str) -> None:
    async with couple(nats_url) as pair:
        update = {"computer": BOX, "capabilities": FLAGS}
        assert await pair.box.call("server:update_capabilities", update) is None
        membership = next(each.membership for each in pair.owner.sessions if each.name == BOX)
        assert membership is not None
        claim, revision = membership.claim, membership.revision
        registry = RegistryClient(pair.world.buses[0], credential=claim.credential, process=claim.process)
        await registry.leave(membership.seat, claim)
        await eventually(lambda: membership.revision > revision)
        assert await listed(pair.anna, BOX, "anna") == FLAGS


@pytest.mark.rule("computer.resources.capabilities.forms")
async def test_invalid_capabilities_or_those_of_another_computer_are_refused(nats_url: str) -> None:
    async with couple(nats_url) as pair, connected(pair.owner.url) as car:
        bad: tuple[Any, ...] = ([], "x", {"resources": True}, {"resources": {"subscribe": "yes"}})
        for capabilities in (*bad, {"resources": {"byServer": {"excel": 1}}}, {"resources": {"byServer": {"": {}}}}):
            join = {"role": "computer", "name": "car", "office_id": OFFICE, "capabilities": capabilities}
            done, why, *_ = await car.call("server:join_office", join)
            assert (done, why[:3]) == (False, "400")
            update = {"computer": BOX, "capabilities": capabilities}
            refused = await pair.box.call("server:update_capabilities", update)
            assert refused["code"] == 400
            assert refused["details"]["field"].startswith("capabilities")
        forged = await pair.box.call("server:update_capabilities", {"computer": "car", "capabilities": FLAGS})
        assert (forged["code"], forged["details"]) == (403, {"field": "computer"})
        agents = await pair.anna.call("server:update_capabilities", {"computer": BOX, "capabilities": FLAGS})
        assert agents["code"] == 403
        assert await listed(pair.anna, BOX, "anna") is None


async def test_after_a_move_its_capabilities_are_those_of_its_new_join(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as anna,
        connected(leaving.url) as box,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        join = {"role": "computer", "name": BOX, "office_id": OFFICE, "capabilities": FLAGS}
        assert await box.call("server:join_office", join) == [True, None]
        left = leave()
        await gone(box)
        await in_time(left)
        assert await listed(anna, BOX, "anna") == FLAGS  # while it is under way
        async with connected(staying.url) as again:
            assert await again.call("server:join_office", join | {"capabilities": BY_SERVER}) == [True, None]

            async def shown() -> bool:
                return bool(await listed(anna, BOX, "anna") == BY_SERVER)

            await eventually(shown)


@pytest.mark.rule("answers.resources.flood")
async def test_a_computer_that_floods_its_office_with_updates_affects_nobody_else(nats_url: str) -> None:
    """What nobody subscribed to goes no further than its gateway; the rest comes in order, none lost."""
    count = scaled(ci=400, soak=4000)

    async def answer(request: dict[str, Any]) -> Any:
        return {"payload": {"jsonrpc": "2.0", "id": request["payload"]["id"], "result": {}}}

    async def tools(_: dict[str, Any]) -> Any:
        return {"tools": [], "req_id": "q"}

    async with (
        couple(nats_url, lease_s=60.0) as pair,
        connected(pair.owner.url) as bert,
        connected(pair.owner.url) as car,
    ):
        assert await bert.join("agent", "bert", "other") == [True, None]
        assert await car.join("computer", "car", "other") == [True, None]
        serve(pair.box, "client:resources/subscribe", answer)
        serve(car, "client:get_tools", tools)
        wanted = [f"file:///{number}" for number in range(0, count, 10)]
        for uri in wanted:
            request = envelope("resources/subscribe", {"uri": uri})
            assert "payload" in await pair.anna.call("client:resources/subscribe", request)
        for number in range(count):
            await pair.box.sio.emit(UPDATED, updated(f"file:///{number}"), namespace=NAMESPACE)
        asked = {"agent": "bert", "req_id": "q", "computer": "car"}
        assert await bert.call("client:get_tools", asked) == {"tools": [], "req_id": "q"}

        def heard() -> list[str]:
            """In the order of the first time: a registry that is slow is asked twice, and tells twice then."""
            return list(dict.fromkeys(told["payload"]["params"]["uri"] for told in pair.anna.told(UPDATED)))

        await eventually(lambda: len(heard()) == len(wanted), timeout=60)
        assert heard() == wanted
        assert not pair.anna.gone.is_set()
        assert bert.told(UPDATED) == []
