"""`resources/list` and `templates/list` without `computerId`: over all Computers of the office."""

import json
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.wire import CHUNKS, SIZE
from smcp_gateway.handlers import rooms
from smcp_gateway.handlers.rooms import read_page
from smcp_testing.gateway_world import MIB, NAMESPACE, Serve, connected, gateway_world
from smcp_testing.listing_office import (
    KEY,
    KINDS,
    OFFICE,
    Lister,
    ask,
    failing,
    flat,
    item,
    known,
    listed,
    office,
    pages,
    silent,
    skipped,
)
from smcp_testing.nats_process import NatsServer
from smcp_testing.scraping import scraped
from smcp_testing.waiting import eventually


@pytest.mark.rule("computer.resources.cursor", "answers.resources.office.order")
@pytest.mark.parametrize("kind", KINDS)
async def test_each_page_has_one_computer_in_order_of_names(nats_url: str, kind: str) -> None:
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


@pytest.mark.rule("answers.resources.office.order")
async def test_each_computer_gets_a_request_that_names_it(nats_url: str) -> None:
    computers = {"a": Lister("a", 0), "b": Lister("b", 4)}
    async with office(nats_url, computers) as (_, anna):
        answer = await ask(anna, req_id="r1", agent="anna", serverId="files", more=[1])
        again = answer["payload"]["result"]["nextCursor"]
        answer = await ask(anna, cursor=again, req_id="r1", agent="anna", serverId="files", more=[1])
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


@pytest.mark.rule("answers.resources.office.empty")
async def test_an_office_without_computers_has_one_empty_page_and_an_empty_computer_one_of_its_own(
    nats_url: str,
) -> None:
    async with office(nats_url, {}) as (world, anna):
        empty = {"roomId": OFFICE, "payload": {"jsonrpc": "2.0", "id": 7, "result": {"resources": []}}}
        assert await ask(anna) == empty
        async with world.computer(OFFICE, "a", Lister("a", 0)), world.computer(OFFICE, "b", Lister("b", 0)):
            await known(anna, 2)
            assert listed(await pages(anna)) == [("a", []), ("b", [])]


@pytest.mark.rule("answers.resources.office.order")
async def test_socketio_and_native_computers_on_any_gateway_are_listed_alike(nats_url: str) -> None:
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


@pytest.mark.rule("answers.resources.office.skipped")
async def test_a_computer_that_cannot_be_listed_is_left_out_and_reported(nats_url: str) -> None:
    serve: Serve

    async def current(verb: str, incoming: Incoming) -> Reply:
        return await serve(verb, incoming)

    async with office(nats_url, {"a": Lister("a", 1), "b": current, "c": Lister("c", 1)}) as (_, anna):
        for why, (serve, said) in CANNOT.items():  # noqa: B007 -- `current` calls it
            found = await pages(anna)
            assert listed(found) == [("a", ["file:///a/0"]), (None, []), ("c", ["file:///c/0"])], why
            assert skipped(found) == (["b"] if said else []), why


@pytest.mark.rule("answers.resources.office.skipped")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_computer_whose_servers_do_not_answer_gets_a_page_that_reports_them(nats_url: str, kind: str) -> None:
    meta = {"a2c_skipped_servers": ["files"]}
    payload = {"jsonrpc": "2.0", "id": 7, "result": {KEY[kind]: [], "meta": meta}}
    lacking = failing({"roomId": OFFICE, "computerId": "b", "payload": payload})
    async with office(nats_url, {"a": flat(500), "b": lacking, "c": Lister("c", 1)}) as (_, anna):
        found = await pages(anna, kind)
        assert listed(found, kind) == [(None, []), ("b", []), ("c", ["file:///c/0"])]
        assert found[0]["payload"]["result"]["meta"] == {"a2c_skipped": ["a"]}
        assert found[1]["payload"]["result"]["meta"] == meta


@pytest.mark.rule("answers.resources.office.skipped")
async def test_only_computers_that_failed_or_did_not_answer_are_reported_as_skipped(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "SHARE_S", 1.5)
    computers = {
        "a": flat(404), "b": flat(400, smcp_code="SMCP_RESOURCE_NOT_SUPPORTED"), "c": flat(500), "d": failing([]),
        "e": silent, "f": Lister("f", 1),
    }  # fmt: skip
    async with office(nats_url, computers) as (world, anna):
        found = await pages(anna)
        assert listed(found) == [*[(None, [])] * 5, ("f", ["file:///f/0"])]
        assert skipped(found) == ["c", "d", "e"]
        assert (await scraped(world.health_url))["smcp_gateway_resources_skipped_total", ()] == 3


@pytest.mark.rule("answers.resources.office.empty", "answers.resources.office.skipped")
async def test_a_computer_that_never_answers_uses_only_its_share_of_the_time(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "SHARE_S", 1.5)
    computers: dict[str, Any] = dict.fromkeys(("b", "c", "d"), silent)
    async with office(nats_url, {"a": Lister("a", 1), **computers, "e": Lister("e", 1)}) as (_, anna):
        found = await pages(anna)
        # a page does not take the time of all of them: it is empty, and the next one goes on
        assert listed(found) == [("a", ["file:///a/0"]), *[(None, [])] * 3, ("e", ["file:///e/0"])]
        assert skipped(found) == ["b", "c", "d"]


@pytest.mark.rule("answers.resources.office.skipped")
@pytest.mark.parametrize(
    ("headers", "share_s"),
    [
        ({SIZE: "1000000", CHUNKS: "7"}, 10),
        ({SIZE: str(33 * MIB), CHUNKS: "66"}, 10),
        ({SIZE: "200", CHUNKS: "2"}, 1.5),
    ],
    ids=["contradict each other", "are too large", "never come"],
)
async def test_a_computer_whose_answers_in_parts_lie_is_left_out_and_the_others_are_listed(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], share_s: float
) -> None:
    """The first two failed the whole list with 503 and 413."""
    monkeypatch.setattr(rooms, "SHARE_S", share_s)

    async def lie(message: Msg) -> None:
        await client.publish(message.reply, bytes(100), headers=headers)

    async with office(nats_url, {"a": Lister("a", 1), "b": silent, "c": Lister("c", 1)}) as (_, anna):
        client = await nats.connect(nats_url)
        try:
            await client.subscribe(subjects.client(OFFICE, "b", "resources_list"), cb=lie)
            await client.flush()
            found = await pages(anna)
        finally:
            await client.close()
        assert listed(found) == [("a", ["file:///a/0"]), (None, []), ("c", ["file:///c/0"])]
        assert skipped(found) == ["b"]


def page_of(count: int, size: int = 0) -> dict[str, Any]:
    items = [{"uri": f"file:///{number}", "name": "y" * 400} for number in range(count)]
    return {"payload": {"jsonrpc": "2.0", "id": 7, "result": {"resources": items, "meta": {"size": size}}}}


@pytest.mark.rule("answers.resources.office.skipped")
async def test_a_page_that_is_larger_than_the_agent_takes_is_left_out_and_the_others_are_listed(nats_url: str) -> None:
    computers = {"a": Lister("a", 1), "b": failing(page_of(3_000)), "c": Lister("c", 1)}
    async with office(nats_url, computers, auth={"max_message": MIB}) as (_, anna):
        found = await pages(anna)
        assert listed(found) == [("a", ["file:///a/0"]), (None, []), ("c", ["file:///c/0"])]
        assert skipped(found) == ["b"]


async def test_a_page_keeps_its_numbers() -> None:
    page = await read_page(json.dumps(page_of(20, 2**70)).encode(), "resources_list")
    assert page["payload"]["result"]["meta"] == {"size": 2**70}


async def test_one_computer_is_asked_for_a_page(nats_url: str) -> None:
    empty = {name: Lister(name, 0) for name in "abcde"}
    async with office(nats_url, {**empty, "f": Lister("f", 1)}) as (_, anna):
        await ask(anna)
        assert [len(computer.asked) for computer in empty.values()] == [1, 0, 0, 0, 0]
        assert listed(await pages(anna)) == [*((name, []) for name in empty), ("f", ["file:///f/0"])]


@pytest.mark.rule("answers.resources.office.skipped")
async def test_computers_that_left_are_skipped_and_new_ones_are_listed(nats_url: str) -> None:
    async with office(nats_url, {"a": Lister("a", 1), "d": Lister("d", 1)}) as (world, anna):
        async with world.computer(OFFICE, "b", Lister("b", 9)) as leaving:
            await known(anna, 3)
            first = await ask(anna)
            second = await ask(anna, cursor=first["payload"]["result"]["nextCursor"])
            assert second["computerId"] == "b"
            await leaving.registry.leave((OFFICE, "computer", "b"), leaving.claim)
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


async def test_a_computer_whose_leave_the_gateway_missed_is_skipped(nats_url: str) -> None:
    async with office(nats_url, {"a": Lister("a", 1)}) as (world, anna):
        here = world.gateways[0].offices.get(OFFICE)
        assert here is not None
        here.roster.event(("computer", "0"), entered=True, epoch=1)
        found = await pages(anna)
        assert listed(found) == [(None, []), ("a", ["file:///a/0"])]
        assert skipped(found) == []


async def test_a_list_during_an_outage_of_nats_is_503(nats_server: NatsServer) -> None:
    async with office(nats_server.url, {"a": Lister("a", 1)}) as (world, anna):
        await nats_server.stop()
        await eventually(lambda: not world.buses[0].connected)
        assert (await ask(anna))["code"] == 503
        await nats_server.start()

        async def is_listed() -> bool:
            answer: dict[str, Any] = await ask(anna)
            return answer.get("computerId") == "a"

        await eventually(is_listed)


async def test_an_agent_without_an_office_cannot_list(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as box:
        assert (await ask(anna))["code"] == 4103
        assert await box.join("computer", "box", OFFICE) == [True, None]
        assert (await ask(box))["code"] == 403
