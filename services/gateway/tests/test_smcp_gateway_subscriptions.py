"""The table of who subscribed to what at one Computer: pure."""

import asyncio
from typing import Any

import pytest

from smcp_bus.dispatch import Answer
from smcp_bus.exact_json import SMALL_BYTES
from smcp_gateway.computers.subscriptions import Subscriptions, granted
from smcp_proto.errors import TooLarge
from smcp_proto.schemas import SubscribeResourceReq

URI = "file:///深"


def subscribe(table: Subscriptions, uri: str = URI, *, agent: str = "anna", server: Any = None) -> None:
    table.add(agent, server, uri)


def who(table: Subscriptions, uri: str = URI, server: str | None = None) -> list[str]:
    return list(table.agents(server, uri))


@pytest.mark.rule("answers.resources.subscribers.query")
def test_the_query_of_a_document_is_ignored() -> None:
    table = Subscriptions()
    subscribe(table, "dpe://h/d?depth=pages", server="files")
    subscribe(table, "DPE://h/d/pages/1?format=text")
    for told in ("dpe://h/d", "dpe://h/d?depth=metadata", "dpe://h/d/pages/0"):
        assert who(table, told, "files") == ["anna"]
        assert who(table, told, "mail") == []
    assert who(table, "DPE://h/d/pages/1") == ["anna"]
    table.end("anna", None, "dpe://h/d?format=markdown")
    assert who(table, "dpe://h/d") == []
    assert len(table) == 1
    subscribe(table, "table://t?row=1")
    assert who(table, "table://t?row=1") == ["anna"]
    assert who(table, "table://t") == []


def request() -> SubscribeResourceReq:
    params = {"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": URI}}
    return SubscribeResourceReq.model_validate({"roomId": "o", "computerId": "box", "agent": "anna", "payload": params})


class Asked:
    """The Computer: it was asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def __call__(self) -> asyncio.Future[Answer]:
        self.asked.set()
        return self.answer


GRANTED = Answer(b'{"payload":{"jsonrpc":"2.0","id":1,"result":{}}}')


async def test_a_subscription_that_is_granted_after_an_unsubscribe_stays() -> None:
    table, computer = Subscriptions(), Asked()
    subscribe(table)
    again = asyncio.create_task(table.subscribe(request(), computer))
    await computer.asked.wait()
    table.end("anna", None, URI)
    computer.answer.set_result(GRANTED)
    await again
    assert who(table) == ["anna"]


@pytest.mark.parametrize("returns", [True, False])
async def test_a_request_of_a_membership_that_has_ended_changes_nothing(returns: bool) -> None:
    table, computer = Subscriptions(), Asked()
    late = asyncio.create_task(table.subscribe(request(), computer))
    await computer.asked.wait()
    table.left("anna")
    if returns:
        subscribe(table)
        computer.answer.set_exception(TimeoutError())
    else:
        computer.answer.set_result(GRANTED)
    await asyncio.wait([late])
    assert isinstance(late.exception(), TimeoutError) == returns
    assert who(table) == ["anna"] * returns


def test_a_repeated_subscription_is_counted_once() -> None:
    counted = 0

    def count(change: int) -> None:
        nonlocal counted
        counted += change

    table = Subscriptions(count=count)
    assert [table.add("anna", None, URI) for _ in range(2)] == [True, False]
    assert counted == len(table) == 1
    table.end("anna", None, URI)
    assert counted == len(table) == 0


@pytest.mark.rule("answers.resources.subscribers.server")
@pytest.mark.parametrize(
    ("subscribed", "told", "is_told"),
    [
        (None, None, True), (None, "files", True), ("files", None, True), ("files", "files", True),
        ("files", "mail", False),
    ],
)  # fmt: skip
def test_the_mcp_servers_are_compared_if_both_are_named(
    subscribed: str | None, told: str | None, is_told: bool
) -> None:
    table = Subscriptions()
    subscribe(table, server=subscribed)
    assert who(table, server=told) == ["anna"] * is_told


def test_unsubscribing_ends_only_that_subscription() -> None:
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


def test_unsubscribing_without_a_server_ends_the_subscription_at_all_servers() -> None:
    table = Subscriptions()
    for server in (None, "files", "mail"):
        subscribe(table, server=server)
    table.end("anna", None, URI)
    assert who(table) == []
    assert len(table) == 0


@pytest.mark.rule("answers.resources.subscribers.parts")
def test_a_subscription_covers_the_parts_of_its_resource_and_not_the_whole() -> None:
    table = Subscriptions()
    subscribe(table, "dpe://host/doc", server="a")
    for told in ("dpe://host/doc/1", "dpe://host/doc/1/2?x=/y", "dpe://host/doc?x"):
        assert who(table, told) == ["anna"]
        assert who(table, told, "b") == []
    for told in ("dpe://host/doc2", "dpe://host", "dpe://host/", "dpe://host/?/doc", "dpe://other/doc/1"):
        assert who(table, told) == []


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


def test_an_answer_that_is_too_large_to_be_read_at_once_grants_nothing() -> None:
    with pytest.raises(TooLarge, match=str(SMALL_BYTES)):
        granted(b" " * (SMALL_BYTES + 1))
