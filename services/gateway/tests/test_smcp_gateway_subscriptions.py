"""The table of who subscribed to what at one Computer: pure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.headers import AGENT_EPOCH
from smcp_gateway.computers.subscriptions import MAX_SUBSCRIPTIONS, Subscriptions, epoch_of, granted
from smcp_proto.errors import RateLimited

URI = "file:///深"


def subscribe(table: Subscriptions, uri: str = URI, *, agent: str = "anna", epoch: int = 3, server: Any = None) -> None:
    table.settle(table.ask(agent, epoch, server, uri), granted=True)


def who(table: Subscriptions, uri: str = URI, server: str | None = None) -> list[str]:
    return list(table.agents(server, uri))


def test_who_subscribed_is_told_and_nobody_else_nor_of_anything_else() -> None:
    table = Subscriptions()
    assert who(table) == []
    subscribe(table)
    assert who(table) == ["anna"]
    assert who(table, "file:///other") == []
    assert who(table, URI + "2") == []


@pytest.mark.rule("answers.resources.flood.short")
def test_of_a_part_that_changed_the_nearest_resource_is_known_that_was_subscribed_to() -> None:
    table = Subscriptions()
    assert table.whole("anna", "dpe://h/d/pages/1") == "dpe://h/d/pages/1"
    subscribe(table, "dpe://h/d")
    subscribe(table, "dpe://h")
    assert table.whole("anna", "dpe://h/d/pages/1?format=text") == "dpe://h/d"
    assert table.whole("anna", "dpe://h/d") == "dpe://h/d"
    assert table.whole("anna", "dpe://h/e") == "dpe://h"
    assert table.whole("bert", "dpe://h/d/pages/1") == "dpe://h/d/pages/1"


@pytest.mark.rule("answers.resources.subscribers.query")
def test_the_query_of_a_document_says_how_it_is_shown_and_not_which_one_it_is() -> None:
    table = Subscriptions()
    subscribe(table, "dpe://h/d?depth=pages", server="files")
    subscribe(table, "DPE://h/d/pages/1?format=text")
    for told in ("dpe://h/d", "dpe://h/d?depth=metadata", "dpe://h/d/pages/0"):
        assert who(table, told, "files") == ["anna"]
        assert who(table, told, "mail") == []
    assert who(table, "DPE://h/d/pages/1") == ["anna"]
    assert table.whole("anna", "dpe://h/d/elements/1?format=text") == "dpe://h/d"
    table.end("anna", None, "dpe://h/d?format=markdown")
    assert who(table, "dpe://h/d") == []
    assert len(table) == 1
    subscribe(table, "table://t?row=1")
    assert who(table, "table://t?row=1") == ["anna"]
    assert who(table, "table://t") == []


@pytest.mark.rule("answers.resources.subscribers.asked")
def test_what_changes_while_the_computer_is_asked_is_told_and_no_more_once_it_refused() -> None:
    table = Subscriptions()
    asked = table.ask("anna", 3, "files", "dpe://h/d")
    assert who(table, "dpe://h/d/pages/1", "files") == ["anna"]
    assert who(table, "dpe://h/d", "mail") == []
    assert table.whole("anna", "dpe://h/d/pages/1") == "dpe://h/d"
    table.left("anna", 4)
    assert who(table, "dpe://h/d") == []
    table.settle(asked, granted=True)
    assert who(table, "dpe://h/d") == []


def test_a_subscription_that_the_computer_did_not_grant_is_none() -> None:
    table = Subscriptions()
    asked = table.ask("anna", 3, None, URI)
    table.settle(asked, granted=False)
    table.settle(asked, granted=True)
    assert who(table) == []
    assert len(table) == 0


@pytest.mark.rule("answers.resources.subscribers.server")
@pytest.mark.parametrize(
    ("subscribed", "told", "is_told"),
    [
        (None, None, True), (None, "files", True), ("files", None, True), ("files", "files", True),
        ("files", "mail", False),
    ],
)  # fmt: skip
def test_the_mcp_server_counts_where_both_name_one(subscribed: str | None, told: str | None, is_told: bool) -> None:
    table = Subscriptions()
    subscribe(table, server=subscribed)
    assert who(table, server=told) == ["anna"] * is_told


def test_unsubscribing_ends_that_one_alone() -> None:
    table = Subscriptions()
    for server in (None, "files"):
        subscribe(table, server=server)
    subscribe(table, "file:///2")
    table.end("anna", "files", URI)
    table.end("anna", "files", URI)
    table.end("bert", None, URI)
    assert who(table, server="mail") == ["anna"]
    assert len(table) == 2
    table.end("anna", None, URI)
    assert who(table) == []
    assert who(table, "file:///2") == ["anna"]
    assert len(table) == 1


def test_unsubscribing_without_a_server_ends_it_at_all_of_them() -> None:
    table = Subscriptions()
    for server in (None, "files", "mail"):
        subscribe(table, server=server)
    table.end("anna", None, URI)
    assert who(table) == []
    assert len(table) == 0


@pytest.mark.rule("answers.resources.subscribers.parts")
def test_a_part_of_what_was_subscribed_is_told_of_and_the_whole_of_a_part_is_not() -> None:
    table = Subscriptions()
    subscribe(table, "dpe://host/doc", server="a")
    for told in ("dpe://host/doc/1", "dpe://host/doc/1/2?x=/y", "dpe://host/doc?x"):
        assert who(table, told) == ["anna"]
        assert who(table, told, "b") == []
    for told in ("dpe://host/doc2", "dpe://host", "dpe://host/", "dpe://host/?/doc", "dpe://other/doc/1"):
        assert who(table, told) == []


def test_a_leave_ends_what_was_subscribed_before_it_and_nothing_later() -> None:
    table = Subscriptions()
    subscribe(table, epoch=2 * 10 + 1)
    table.left("bert", 2 * 99)
    table.left("anna", 2 * 9)  # of an earlier membership, heard late
    assert who(table) == ["anna"]
    table.left("anna", 2 * 11)
    assert who(table) == []
    subscribe(table, epoch=2 * 12 + 1)
    table.left("anna", None)
    assert who(table) == []


def test_a_leave_between_two_memberships_that_is_heard_after_the_second_ends_the_first_alone() -> None:
    table = Subscriptions()
    subscribe(table, "file:///1", epoch=2 * 10 + 1)
    subscribe(table, "file:///both", epoch=2 * 10 + 1)
    subscribe(table, "file:///2", epoch=2 * 12 + 1)
    subscribe(table, "file:///both", epoch=2 * 12 + 1)
    table.left("anna", 2 * 11)
    assert [who(table, f"file:///{name}") for name in ("1", "2", "both")] == [[], ["anna"], ["anna"]]
    assert len(table) == 2


def test_a_leave_while_the_computer_is_asked_ends_that_too() -> None:
    table = Subscriptions()
    old, new = table.ask("anna", 21, None, URI), table.ask("anna", 25, None, "file:///2")
    table.left("anna", 2 * 12)
    table.settle(old, granted=True)
    table.settle(new, granted=True)
    assert who(table) == []
    assert who(table, "file:///2") == ["anna"]


def test_what_was_subscribed_elsewhere_is_over_with_the_leave_of_its_agent() -> None:
    table = Subscriptions()
    table.unknown_since = 2 * 20 + 1
    subscribe(table, epoch=2 * 10 + 1)
    table.left("zoe", 2 * 19)  # she left before the Computer came here: what is not known is not hers
    assert table.unknown_since is not None
    table.left("anna", 2 * 21)
    assert table.unknown_since is None


def test_what_is_older_than_the_membership_of_the_offices_agent_is_over_whoever_subscribed_it() -> None:
    table = Subscriptions()
    assert table.idle
    subscribe(table, "old", epoch=21)
    subscribe(table, "new", epoch=25)
    subscribe(table, "unknown", epoch=0)
    subscribe(table, "another's", agent="bert", epoch=19)
    asked = [table.ask("anna", epoch, None, f"asked in {epoch}") for epoch in (21, 25, 0)]
    table.began(24)
    for each in asked:
        table.settle(each, granted=True)
    kept = {"new", "unknown", "asked in 25", "asked in 0"}
    assert {uri for uri in (*kept, "old", "another's", "asked in 21") if who(table, uri)} == kept
    assert len(table) == 4
    table.left("anna", 26)
    assert table.idle


@pytest.mark.parametrize(
    ("unknown_since", "began", "after"),
    [
        (21, 20, 21),  # that Agent was there already when the Computer came
        (21, 22, None),
        (0, 22, 0),  # a gateway did not say who subscribed: it may have been the present Agent
        (None, 22, None),
    ],
)
def test_what_was_subscribed_elsewhere_is_over_where_its_agent_came_after_the_computer(
    unknown_since: int | None, began: int, after: int | None
) -> None:
    table = Subscriptions()
    table.unknown_since = unknown_since
    table.began(began)
    assert table.unknown_since == after
    assert table.idle == (after is None)


@pytest.mark.rule("answers.resources.subscribers.limit")
def test_an_agent_has_as_many_as_it_may_have_and_no_more_also_while_they_are_asked_for() -> None:
    table = Subscriptions(most=3)
    first = table.ask("anna", 3, None, "0")
    subscribe(table, "1")
    subscribe(table, "2")
    with pytest.raises(RateLimited) as refused:
        table.ask("anna", 3, None, "3")
    assert refused.value.details == {"smcp_code": "SMCP_RATE_LIMITED", "limit": 3}
    subscribe(table, "2")  # the same once more is none more
    subscribe(table, "3", agent="bert")
    table.settle(first, granted=False)
    subscribe(table, "3")
    with pytest.raises(RateLimited):
        table.ask("anna", 3, None, "4")
    table.end("anna", None, "1")
    subscribe(table, "4")
    assert MAX_SUBSCRIPTIONS == 1000


@pytest.mark.rule("answers.resources.subscribers.granted")
@pytest.mark.parametrize(
    ("answer", "is_granted"),
    [
        (b'{"payload":{"jsonrpc":"2.0","id":1,"result":{}}}', True),
        (b'{"payload":{"id":1,"result":{"x":1},"error":null}}', True),
        (b'{"payload":{"id":1,"error":{"code":-32601,"message":"no"}}}', False),
        (b'{"payload":{"id":1,"result":{},"error":{"code":1,"message":"no"}}}', False),
        (b'{"code":404,"message":"no such Computer","details":{}}', False),
        (b'{"payload":[]}', False), (b'{"payload":{}}', False), (b"{}", False), (b"{x}", False), (b"[]", False),
    ],
)  # fmt: skip
def test_only_a_result_grants(answer: bytes, is_granted: bool) -> None:
    assert granted(answer) is is_granted


@pytest.mark.parametrize(("said", "epoch"), [("7", 7), ("", 0), ("-7", 0), ("x", 0), ("٣", 0), ("9" * 30, 0)])
def test_an_epoch_that_cannot_be_read_is_before_all_others(said: str, epoch: int) -> None:
    assert epoch_of({AGENT_EPOCH: said}) == epoch
    assert epoch_of({}) == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "grant", "refuse", "end", "leave"]),
        st.sampled_from(["anna", "bert"]),
        st.sampled_from([None, "files", "mail"]),
        st.sampled_from(["u", "v", "w"]),
    ),
    max_size=40,
)


@pytest.mark.rule("computer.resources.server.registry")
@given(STEPS)
def test_it_holds_what_a_plain_set_would_hold(steps: list[tuple[str, str, str | None, str]]) -> None:
    table, plain, waiting = Subscriptions(), set[tuple[str, str | None, str]](), list[Any]()
    for number, (step, agent, server, uri) in enumerate(steps, start=1):
        match step:
            case "ask":
                waiting.append(((agent, server, uri), table.ask(agent, 2 * number + 1, server, uri)))
            case "grant" | "refuse" if waiting:
                key, asked = waiting.pop(0)
                table.settle(asked, granted=step == "grant")
                plain |= {key} if step == "grant" else set()
            case "end":
                table.end(agent, server, uri)
                plain -= {key for key in plain if key[0] == agent and key[2] == uri and server in (None, key[1])}
            case "leave":
                table.left(agent, 2 * number)
                plain = {key for key in plain if key[0] != agent}
                for key, asked in waiting:
                    if key[0] == agent:
                        table.settle(asked, granted=True)  # too late
                waiting = [(key, asked) for key, asked in waiting if key[0] != agent]
        assert len(table) == len(plain)
        wants = plain | {key for key, _ in waiting}
        for changed in ("u", "v", "w"):
            for told in (None, "files", "mail"):
                wanted = {
                    a for a, s, u in wants if u == changed and (s is None or told is None or s == told)
                }  # fmt: skip
                assert set(table.agents(told, changed)) == wanted
