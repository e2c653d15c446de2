"""Cursors of lists over all Computers of an office: those that the list gave, and any others."""

import base64
import json

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_testing.gateway_world import reply
from smcp_testing.listing_office import KINDS, OFFICE, Lister, ask, failing, flat, item, listed, office, pages, skipped


@pytest.mark.rule("answers.resources.office.cursor")
@pytest.mark.parametrize("kind", KINDS)
async def test_an_unknown_cursor_is_400_and_no_computer_is_asked(nats_url: str, kind: str) -> None:
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


@pytest.mark.rule("answers.resources.office.cursor")
@pytest.mark.parametrize("how", BAD_CURSOR)
async def test_a_cursor_from_the_agent_that_its_computer_refuses_is_400(nats_url: str, how: str) -> None:
    forged = base64.urlsafe_b64encode(json.dumps(["office", "resources_list", "a", "forged"]).encode()).decode()
    async with office(nats_url, {"a": BAD_CURSOR[how], "b": Lister("b", 1)}) as (_, anna):
        refused = await ask(anna, cursor=forged)
        assert (refused["code"], refused["details"]["field"]) == (400, "payload.params.cursor")
        found = await pages(anna)
        assert listed(found) == [("b", ["file:///b/0"])]
        assert skipped(found) == ["a"]


@pytest.mark.rule("computer.resources.server.routing.room", "answers.resources.computer")
async def test_a_cursor_with_a_computer_of_another_office_reaches_no_computer_there(nats_url: str) -> None:
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
async def test_an_unusable_cursor_of_a_computer_ends_only_its_own_list(nats_url: str, cursor: str) -> None:
    async def endless(_: str, incoming: Incoming) -> Reply:
        result = {"resources": [item("a", 0)], "nextCursor": cursor}
        return reply({"payload": {"jsonrpc": "2.0", "id": 1, "result": result}})

    async with office(nats_url, {"a": endless, "b": Lister("b", 1)}) as (_, anna):
        found = await pages(anna, most=5)
        assert listed(found)[-1] == ("b", ["file:///b/0"])
        assert {name for name, _ in listed(found)} == {"a", "b"}
        assert skipped(found) == ["a"]
