"""Pages over the lists of several servers, and the cursor between two pages."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_computer.resources.index import (
    PAGE_BYTES,
    PAGE_ITEMS,
    Position,
    page_of,
    read_position,
    with_unique_names,
)
from smcp_proto.errors import Malformed
from smcp_proto.validation import CURSOR_FIELD, write_cursor

Lists = dict[str, list[dict[str, Any]]]
uris = st.lists(st.text(min_size=1, max_size=3), max_size=250)


def lists(**uris_of: list[str]) -> Lists:
    return {server: [{"uri": uri, "name": uri} for uri in uris] for server, uris in uris_of.items()}


def all_pages(listed: Lists) -> list[list[str]]:
    """The URIs of each page, as a client gets them: with the cursor as text."""
    pages, cursor = [], None
    while True:
        page = page_of("resources", listed, None if cursor is None else read_position(cursor, "resources"))
        pages.append([item["uri"] for item in page.items])
        if page.next is None:
            return pages
        cursor = write_cursor(page.next)


@pytest.mark.rule("computer.resources.models.page", "computer.resources.computer.pages")
@given(st.dictionaries(st.text(max_size=5), uris, max_size=4))
def test_all_pages_together_hold_each_item_once_in_order(uris_of: dict[str, list[str]]) -> None:
    listed = lists(**uris_of)
    pages = all_pages(listed)
    assert [uri for page in pages for uri in page] == [uri for name in sorted(uris_of) for uri in uris_of[name]]
    assert all(len(page) == PAGE_ITEMS for page in pages[:-1])
    assert len(pages[-1]) <= PAGE_ITEMS


def numbered(count: int) -> list[str]:
    return [f"x://{number}" for number in range(count)]


def second_page(listed: Lists, *, then: Lists) -> list[str]:
    """What follows the first page of `listed` where the lists are `then` by that time."""
    first = page_of("resources", listed)
    assert first.next is not None
    return [item["uri"] for item in page_of("resources", then, first.next).items]


@pytest.mark.rule("answers.resources.cursor.restart")
def test_a_list_continues_where_a_page_ended_also_if_it_is_another_list_by_then() -> None:
    before = lists(a=numbered(150))
    assert second_page(before, then=lists(a=numbered(150))) == numbered(150)[100:]
    assert second_page(before, then=lists(a=["x://new", *numbered(150)])) == numbered(150)[99:]
    assert second_page(before, then=lists(a=numbered(50))) == []


@pytest.mark.rule("answers.resources.cursor.restart")
def test_a_server_that_is_gone_at_the_next_page_loses_only_its_remaining_items() -> None:
    before = lists(a=numbered(150), b=["b://1"])
    assert second_page(before, then=lists(b=["b://1"])) == ["b://1"]
    assert second_page(before, then=lists(a=[], b=["b://1"])) == ["b://1"]


@pytest.mark.rule("computer.resources.models.routing", "answers.resources.items.server")
def test_each_item_names_its_server_even_if_it_claims_another() -> None:
    item = {"uri": "x://1", "name": "1", "serverId": "another"}
    page = page_of("resources", {"a": [item], "b": [{"uri": "x://1"}]})
    assert page.items == [{"uri": "x://1", "name": "1", "serverId": "a"}, {"uri": "x://1", "serverId": "b"}]
    assert item["serverId"] == "another", "what is kept of the server stays as it is"


@pytest.mark.rule("answers.resources.pages.bytes")
def test_a_page_ends_before_it_is_too_large_for_small_clients() -> None:
    large = [{"uri": f"x://{number}", "name": "n" * (PAGE_BYTES // 3)} for number in range(7)]
    pages = all_pages({"a": large})
    assert [len(page) for page in pages] == [2, 2, 2, 1]


@pytest.mark.rule("answers.resources.pages.bytes")
def test_only_the_oversized_item_is_left_out_of_a_page() -> None:
    items = [{"uri": "x://1", "name": "1"}, {"uri": "x://2", "name": "n" * PAGE_BYTES}, {"uri": "x://3", "name": "3"}]
    page = page_of("resources", {"a": items})
    assert [item["uri"] for item in page.items] == ["x://1", "x://3"]
    assert page.left_out == [("a", "x://2")]
    assert page.next is None


@pytest.mark.rule("computer.resources.models.cursor.opaque")
@pytest.mark.parametrize(
    "cursor",
    [
        "", "x", "!!!!", "読む", "e30", "W10", "bnVsbA", "a" * 8000,
        base64.urlsafe_b64encode(json.dumps(["r", "s", -1]).encode()).decode(),
        base64.urlsafe_b64encode(json.dumps(["r", "s", True]).encode()).decode(),
        base64.urlsafe_b64encode(json.dumps(["r", 1, 1]).encode()).decode(),
        base64.urlsafe_b64encode(json.dumps(["r", "s", 1, 1]).encode()).decode(),
        base64.urlsafe_b64encode(b"\xff\xfe[1]").decode(),
        write_cursor(Position("templates", "s", 1)),
    ],
)  # fmt: skip
def test_a_cursor_that_cannot_be_read_is_refused_by_its_field(cursor: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_position(cursor, "resources")
    assert refused.value.details["field"] == CURSOR_FIELD


@pytest.mark.rule("computer.resources.models.cursor.opaque")
@given(st.text(max_size=256), st.integers(0, 10_000_000))
def test_a_cursor_is_opaque_short_and_reads_back(server: str, begin: int) -> None:
    position = Position("templates", server, begin)
    cursor = write_cursor(position)
    assert read_position(cursor, "templates") == position
    assert len(cursor) < 4096, "the cursor over all Computers carries it"
    assert cursor.isascii()


@pytest.mark.rule("computer.resources.models.template")
def test_templates_of_servers_that_share_a_name_are_listed_with_a_prefix() -> None:
    named = with_unique_names(
        {
            "a": [{"uriTemplate": "x://{id}", "name": "file"}, {"uriTemplate": "x://{n}", "name": "own"}],
            "b": [{"uriTemplate": "y://{id}", "name": "file", "title": "T"}],
            "c": [{"uriTemplate": "z://{id}", "name": "twice"}, {"uriTemplate": "z://{n}", "name": "twice"}],
        }
    )
    odd: list[dict[str, Any]] = [{"uriTemplate": "x://", "name": name} for name in (None, 7, ["n"], {"n": 1}, "")]
    assert with_unique_names({"a": odd, "b": odd}) == {"a": odd, "b": odd}, "a value that is not a name is left alone"
    assert [item["name"] for item in named["a"]] == ["a__file", "own"]
    assert named["b"] == [{"uriTemplate": "y://{id}", "name": "b__file", "title": "T"}]
    assert [item["name"] for item in named["c"]] == ["twice", "twice"], "its server's name tells nothing apart here"
