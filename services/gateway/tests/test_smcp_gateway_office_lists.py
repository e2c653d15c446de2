"""`resources/list` and `templates/list` without `computerId`: over all Computers of the office."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import orjson
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR
from smcp_gateway.handlers import list_resources
from smcp_testing.gateway_world import NAMESPACE, Client, World, connected, gateway_world, reply
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

OFFICE = "办公室 1"
KINDS = ["resources", "templates"]
EVENT = {"resources": "client:resources/list", "templates": "client:resources/templates/list"}
KEY = {"resources": "resources", "templates": "resourceTemplates"}
VERBS = {"resources_list": "resources", "resources_templates_list": "templates"}


def item(name: str, number: int) -> dict[str, Any]:
    return {"uri": f"file:///{name}/{number}", "name": str(number), "unknown": [number]}


class Lister:
    """A Computer that lists so many items, two a page."""

    def __init__(self, name: str, count: int = 3, *, page: int = 2) -> None:
        self.name = name
        self.asked: list[dict[str, Any]] = []
        self._count = count
        self._page = page

    async def __call__(self, verb: str, incoming: Incoming) -> Reply:
        return reply(self.answer(VERBS[verb], orjson.loads(incoming.body)))

    def answer(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        message = request["payload"]
        begin = int((message.get("params") or {}).get("cursor", 0))
        items = [item(self.name, number) for number in range(begin, min(begin + self._page, self._count))]
        result: dict[str, Any] = {KEY[kind]: items, "meta": {"of": self.name}}
        if begin + self._page < self._count:
            result["nextCursor"] = str(begin + self._page)
        payload = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return {"roomId": OFFICE, "computerId": self.name, "payload": payload}


def failing(body: Any, code: int | None = None) -> Any:
    """A Computer that answers this, as a flat error where there is a code."""

    async def serve(_: str, __: Incoming) -> Reply:
        return Reply(orjson.dumps(body), {} if code is None else {ERROR: str(code)})

    return serve


def flat(code: int, **details: Any) -> Any:
    return failing({"code": code, "message": "no", "details": details}, code)


async def silent(_: str, __: Incoming) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError


async def ask(anna: Client, kind: str = "resources", cursor: str | None = None, **envelope: Any) -> Any:
    params = {} if cursor is None else {"params": {"cursor": cursor}}
    payload = {"jsonrpc": "2.0", "id": 7, "method": EVENT[kind].partition(":")[2], **params}
    return await anna.call(EVENT[kind], {"roomId": OFFICE, "payload": payload, **envelope}, timeout=30)


async def pages(anna: Client, kind: str = "resources", *, most: int = 50) -> list[dict[str, Any]]:
    """All of them, one after the other."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(most):
        answer = await ask(anna, kind, cursor)
        assert answer["roomId"] == OFFICE
        assert (answer["payload"]["jsonrpc"], answer["payload"]["id"]) == ("2.0", 7)
        found.append(answer)
        cursor = answer["payload"]["result"].get("nextCursor")
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


def listed(found: list[dict[str, Any]], kind: str = "resources") -> list[tuple[str | None, list[str]]]:
    """Of each page where it comes from, and its items."""
    return [(page.get("computerId"), [each["uri"] for each in page["payload"]["result"][KEY[kind]]]) for page in found]


def skipped(found: list[dict[str, Any]]) -> list[str]:
    return [name for page in found for name in page["payload"]["result"].get("meta", {}).get("a2c_skipped", [])]


@asynccontextmanager
async def office(nats_url: str, computers: Mapping[str, Any], **options: Any) -> AsyncIterator[tuple[World, Client]]:
    """The Agent is on the first of two gateways, and has heard of all these Computers."""
    async with (
        gateway_world(nats_url, gateways=2, **options) as world,
        connected(world.gateways[0].url) as anna,
        AsyncExitStack() as stack,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        for name, serve in computers.items():
            await stack.enter_async_context(world.computer(OFFICE, name, serve))
        await known(anna, len(computers))
        yield world, anna


async def known(anna: Client, count: int) -> None:
    await eventually(lambda: len(anna.told("notify:enter_office")) == count)


@pytest.mark.parametrize("kind", KINDS)
async def test_each_page_comes_from_one_computer_and_they_come_in_order_of_name(nats_url: str, kind: str) -> None:
    computers = {name: Lister(name) for name in ("盒子", "b", "a.*")}
    async with office(nats_url, computers) as (_, anna):
        found = await pages(anna, kind)
        assert listed(found, kind) == [
            (name, [f"file:///{name}/{number}" for number in numbers])
            for name in ("a.*", "b", "盒子")
            for numbers in ((0, 1), (2,))
        ]
        first = found[0]["payload"]["result"]
        assert first[KEY[kind]] == [item("a.*", 0), item("a.*", 1)]
        assert first["meta"] == {"of": "a.*"}
        assert [len(computer.asked) for computer in computers.values()] == [2, 2, 2]
        named = await ask(anna, kind, computerId="b")
        assert named == {
            "roomId": OFFICE,
            "computerId": "b",
            "payload": {
                "jsonrpc": "2.0",
                "id": 7,
                "result": {KEY[kind]: [item("b", 0), item("b", 1)], "meta": {"of": "b"}, "nextCursor": "2"},
            },
        }


async def test_each_computer_is_asked_as_if_it_was_named(nats_url: str) -> None:
    computers = {"a": Lister("a", 0), "b": Lister("b", 4)}
    async with office(nats_url, computers) as (_, anna):
        answer = await ask(anna, req_id="r1", agent="anna", serverId="files", more=[1])
        await ask(anna, cursor=answer["payload"]["result"]["nextCursor"])
        payload = {"jsonrpc": "2.0", "id": 7, "method": "resources/list", "params": {}}
        asked = {
            "roomId": OFFICE,
            "req_id": "r1",
            "agent": "anna",
            "serverId": "files",
            "more": [1],
            "payload": payload,
        }
        assert computers["a"].asked == [asked | {"computerId": "a"}]
        assert computers["b"].asked == [
            asked | {"computerId": "b"},
            {"roomId": OFFICE, "computerId": "b", "payload": payload | {"params": {"cursor": "2"}}},
        ]


async def test_an_office_without_computers_or_with_empty_ones_has_one_empty_page(nats_url: str) -> None:
    async with office(nats_url, {}) as (world, anna):
        empty = {"roomId": OFFICE, "payload": {"jsonrpc": "2.0", "id": 7, "result": {"resources": []}}}
        assert await ask(anna) == empty
        async with world.computer(OFFICE, "a", Lister("a", 0)), world.computer(OFFICE, "b", Lister("b", 0)):
            await known(anna, 2)
            assert await ask(anna) == empty


async def test_computers_on_socketio_and_native_ones_are_listed_alike_wherever_they_are(nats_url: str) -> None:
    async with (
        office(nats_url, {"b": Lister("b", 1)}) as (world, anna),
        connected(world.gateways[0].url) as near,
        connected(world.gateways[1].url) as far,
    ):
        for client, name in ((near, "a"), (far, "c")):

            async def answer(request: dict[str, Any], name: str = name) -> Any:
                return Lister(name, 1).answer("resources", request)

            client.sio.on("client:resources/list", answer, namespace=NAMESPACE)
            assert await client.join("computer", name, OFFICE) == [True, None]
        await known(anna, 3)
        assert listed(await pages(anna)) == [(name, [f"file:///{name}/0"]) for name in "abc"]


CANNOT: dict[str, tuple[Any, bool]] = {
    "does not know the event": (failing([]), True),
    "is not one of ours": (failing({"x": 1}), True),
    "has no resources": (flat(400, smcp_code="SMCP_RESOURCE_NOT_SUPPORTED"), False),
    "fails": (flat(500), True),
    "is not ready": (flat(503, may_have_run=False), True),
    "says its error in a plain reply": (failing({"code": 500, "message": "no"}), True),
    "has no resources, in a plain reply": (
        failing({"code": 400, "message": "no", "details": {"smcp_code": "SMCP_RESOURCE_NOT_SUPPORTED"}}), False,
    ),
    "has an error of MCP": (failing({"payload": {"error": {"code": -32603, "message": "no"}}}), True),
    "knows no such method": (failing({"payload": {"error": {"code": -32601, "message": "no"}}}), False),
    "gives items that are none": (failing({"payload": {"result": {"resources": {}}}}), True),
    "gives no items": (failing({"payload": {"result": {}}}), True),
    "gives a cursor that is none": (failing({"payload": {"result": {"resources": [], "nextCursor": 7}}}), True),
    "gives a code that is none": (failing({"code": "x"}), True),
}  # fmt: skip


@pytest.mark.parametrize("why", CANNOT)
async def test_one_that_cannot_be_listed_is_left_out_and_said_to_be(nats_url: str, why: str) -> None:
    serve, said = CANNOT[why]
    async with office(nats_url, {"a": Lister("a", 1), "b": serve, "c": Lister("c", 1)}) as (_, anna):
        found = await pages(anna)
        assert listed(found) == [("a", ["file:///a/0"]), ("c", ["file:///c/0"])]
        assert skipped(found) == (["b"] if said else [])


async def test_who_was_left_out_is_counted_by_reason(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr("smcp_gateway.handlers.list_resources.metrics.get_meter", provider.get_meter)
    monkeypatch.setattr(list_resources, "SHARE_S", 0.5)
    computers = {
        "a": flat(404), "b": flat(400, smcp_code="SMCP_RESOURCE_NOT_SUPPORTED"), "c": flat(500), "d": failing([]),
        "e": silent, "f": Lister("f", 1),
    }  # fmt: skip
    async with office(nats_url, computers) as (_, anna):
        assert listed(await pages(anna)) == [("f", ["file:///f/0"])]
    found = reader.get_metrics_data()
    assert found is not None
    metric = found.resource_metrics[0].scope_metrics[0].metrics[0]
    counted = {str((point.attributes or {})["reason"]): cast("Any", point).value for point in metric.data.data_points}
    assert metric.name == "smcp.gateway.resources.skipped"
    assert counted == {"left": 1, "not_supported": 1, "failed": 2, "silent": 1}
    provider.shutdown()


async def test_one_that_never_answers_costs_its_share_of_the_time_and_the_others_are_listed(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_resources, "SHARE_S", 0.5)
    monkeypatch.setattr(list_resources, "PAGE_S", 1.2)
    computers: dict[str, Any] = dict.fromkeys(("b", "c", "d"), silent)
    async with office(nats_url, {"a": Lister("a", 1), **computers, "e": Lister("e", 1)}) as (_, anna):
        found = await pages(anna)
        # a page does not take the time of all of them: it may be empty, and the next one goes on
        assert [page for page in listed(found) if page[1]] == [("a", ["file:///a/0"]), ("e", ["file:///e/0"])]
        assert (None, []) in listed(found)
        assert skipped(found) == ["b", "c", "d"]


async def test_a_page_asks_no_more_than_some_computers_and_the_next_one_goes_on(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_resources, "MOST", 2)
    empty = {name: Lister(name, 0) for name in "abcde"}
    async with office(nats_url, {**empty, "f": Lister("f", 1)}) as (_, anna):
        assert listed(await pages(anna)) == [(None, []), (None, []), ("f", ["file:///f/0"])]
        assert [len(computer.asked) for computer in empty.values()] == [1] * 5


async def test_one_that_left_is_passed_over_and_one_that_came_is_listed_in_its_place(nats_url: str) -> None:
    async with office(nats_url, {"a": Lister("a", 1), "d": Lister("d", 1)}) as (world, anna):
        async with world.computer(OFFICE, "b", Lister("b", 9)) as leaving:
            await known(anna, 3)
            first = await ask(anna)
            second = await ask(anna, cursor=first["payload"]["result"]["nextCursor"])
            assert second["computerId"] == "b"
            await leaving.registry.leave(OFFICE, "computer", "b", leaving.claim)
            await eventually(lambda: anna.told("notify:leave_office"))
        tail = second["payload"]["result"]["nextCursor"]
        async with world.computer(OFFICE, "c", Lister("c", 1)):
            await known(anna, 4)
            third = await ask(anna, cursor=tail)
            assert listed([third]) == [("c", ["file:///c/0"])]
            assert skipped([third]) == []
            last = await ask(anna, cursor=third["payload"]["result"]["nextCursor"])
            assert listed([last]) == [("d", ["file:///d/0"])]
            assert "nextCursor" not in last["payload"]["result"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cursor_that_this_list_did_not_give_is_400_and_nobody_is_asked(nats_url: str, kind: str) -> None:
    box = Lister("a", 9)
    async with office(nats_url, {"a": box}) as (_, anna):
        other = "templates" if kind == "resources" else "resources"
        foreign = (await ask(anna, other))["payload"]["result"]["nextCursor"]
        box.asked.clear()
        forged = [
            base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
            for value in (["office", f"{kind}_list", "x" * 200, None], ["office"], {"computer": "a"}, None)
        ]
        for cursor in ("", "2", "🙂", "=", "A" * 8192, foreign, *forged):
            refused = await ask(anna, kind, cursor)
            assert refused["code"] == 400
            assert refused["details"]["field"] == "payload.params.cursor"
        too_long = await ask(anna, kind, "A" * 8193)
        assert (too_long["code"], too_long["details"]["field"]) == (400, "payload.params.cursor")
        assert box.asked == []


BAD_CURSOR = {
    "flat": flat(400, field="payload.params.cursor", reason="none"),
    "plain": failing({"code": 400, "message": "no", "details": {"field": "payload.params.cursor"}}),
    "MCP": failing({"payload": {"error": {"code": -32602, "message": "Invalid cursor"}}}),
}


@pytest.mark.parametrize("how", BAD_CURSOR)
async def test_a_cursor_that_its_computer_does_not_know_is_400_where_it_is_the_agents(nats_url: str, how: str) -> None:
    forged = base64.urlsafe_b64encode(json.dumps(["office", "resources_list", "a", "forged"]).encode()).decode()
    async with office(nats_url, {"a": BAD_CURSOR[how], "b": Lister("b", 1)}) as (_, anna):
        refused = await ask(anna, cursor=forged)
        assert (refused["code"], refused["details"]["field"]) == (400, "payload.params.cursor")
        found = await pages(anna)
        assert listed(found) == [("b", ["file:///b/0"])]
        assert skipped(found) == ["a"]


async def test_a_cursor_that_names_a_computer_of_another_office_asks_nobody_there(nats_url: str) -> None:
    foreign = Lister("b", 9)
    async with office(nats_url, {"a": Lister("a", 1), "c": Lister("c", 1)}) as (world, anna):
        async with world.computer("other", "b", foreign):
            forged = base64.urlsafe_b64encode(json.dumps(["office", "resources_list", "b", "0"]).encode()).decode()
            assert listed([await ask(anna, cursor=forged)]) == [("c", ["file:///c/0"])]
            for room in ("other", f"{OFFICE} "):
                refused = await ask(anna, roomId=room)
                assert (refused["code"], refused["details"]) == (403, {"field": "roomId"})
            assert (await ask(anna, computerId="b"))["code"] == 404
            assert foreign.asked == []


@pytest.mark.parametrize("cursor", ["same", "x" * 8000], ids=["stands still", "too long"])
async def test_a_computers_cursor_that_cannot_be_used_ends_its_list_and_not_the_others(
    nats_url: str, cursor: str
) -> None:
    async def endless(_: str, incoming: Incoming) -> Reply:
        result = {"resources": [item("a", 0)], "nextCursor": cursor}
        return reply({"payload": {"jsonrpc": "2.0", "id": 1, "result": result}})

    async with office(nats_url, {"a": endless, "b": Lister("b", 1)}) as (_, anna):
        found = await pages(anna, most=5)
        assert listed(found)[-1] == ("b", ["file:///b/0"])
        assert {name for name, _ in listed(found)} == {"a", "b"}
        assert skipped(found) == ["a"]


async def test_one_that_left_without_the_gateway_having_heard_it_is_passed_over(nats_url: str) -> None:
    async with office(nats_url, {"a": Lister("a", 1)}) as (world, anna):
        here = world.gateways[0].offices.get(OFFICE)
        assert here is not None
        here.picture.event(("computer", "0"), entered=True, epoch=1)
        found = await pages(anna)
        assert listed(found) == [("a", ["file:///a/0"])]
        assert skipped(found) == []


async def test_while_nats_is_away_it_is_503_and_no_empty_list(nats_server: NatsServer) -> None:
    async with office(nats_server.url, {"a": Lister("a", 1)}) as (world, anna):
        await nats_server.stop()
        await eventually(lambda: not world.buses[0].connected)
        assert (await ask(anna))["code"] == 503
        await nats_server.start()

        async def is_listed() -> bool:
            answer: dict[str, Any] = await ask(anna)
            return answer.get("computerId") == "a"

        await eventually(is_listed, timeout=20)


async def test_an_agent_in_no_office_lists_nothing(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as box:
        assert (await ask(anna))["code"] == 4103
        assert await box.join("computer", "box", OFFICE) == [True, None]
        assert (await ask(box))["code"] == 403
