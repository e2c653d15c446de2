"""Cursors of lists over all Computers of an office: those that the list gave, and any others."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.bus import Incoming, Reply
from smcp_gateway.handlers.rooms import office_cursor, read_office_cursor
from smcp_proto.errors import Malformed
from smcp_proto.member_names import check_name
from smcp_proto.schemas.resources import MAX_CURSOR
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
        assert listed(found) == [(None, []), ("b", ["file:///b/0"])]
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


VERB = "resources_list"
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).map(check_name)
inner = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def refused(text: str, verb: str = VERB) -> None:
    with pytest.raises(Malformed) as error:
        read_office_cursor(text, verb)
    assert error.value.details["field"] == "payload.params.cursor"
    assert error.value.message == "payload.params.cursor: is not a cursor of this list"


@pytest.mark.rule("computer.resources.cursor")
@given(names, inner)
def test_a_written_cursor_can_be_read(name: str, cursor: str | None) -> None:
    text = office_cursor(VERB, name, cursor)
    assert text is not None
    assert text.isascii()
    assert read_office_cursor(text, VERB) == (name, cursor)
    refused(text, "resources_templates_list")


@pytest.mark.rule("answers.resources.office.cursor")
@given(st.text(max_size=60) | st.text("abcXYZ019-_=", max_size=60))
def test_any_other_text_is_refused_naming_the_field(text: str) -> None:
    refused(text)


@pytest.mark.parametrize(
    "value",
    [
        None, 1, "office", [], {}, ["office", VERB, "box"], ["office", VERB, "box", 1], ["office", VERB, "", None],
        ["office", VERB, 7, None], ["office", VERB, "a\u0000b", None], ["office", VERB, "x" * 129, None],
        ["office", "tool_call", "box", None], ["other", VERB, "box", None], ["office", VERB, "box", None, 1],
        ["r", "server", 3, "mark"],
    ],
)  # fmt: skip
def test_a_forged_cursor_is_refused(value: Any) -> None:
    refused(encoded(value))


def test_a_deeply_nested_cursor_is_refused() -> None:
    refused(base64.urlsafe_b64encode(b"[" * 6000).decode())


def test_a_computers_cursor_that_is_too_long_gives_no_office_cursor() -> None:
    assert office_cursor(VERB, "box", "x" * 6000) is not None
    assert office_cursor(VERB, "box", "x" * MAX_CURSOR) is None
