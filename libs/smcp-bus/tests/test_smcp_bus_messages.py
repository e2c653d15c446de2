"""Messages are cut from the bytes of a connection as nats-py's own parser cuts them, however these come in."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from smcp_bus.nats.wire import Receiver, Splitter

Received = tuple[int, bytes, bytes, bytes, bytes]
"""Number of the subscription, subject, reply subject, header block, body."""

subjects = st.text("abcM.-_0123456789", min_size=1, max_size=12).map(str.encode)
bodies = st.one_of(st.binary(max_size=40), st.just(b"PING\r\nMSG a 1 1\r\nx\r\n"), st.just(b"x" * 5000))
heads = st.one_of(st.just(b""), st.just(b"NATS/1.0\r\n\r\n"), st.just(b"NATS/1.0\r\nSmcp-Budget: 12\r\n\r\n"))
messages = st.tuples(st.integers(1, 3), subjects, st.one_of(st.just(b""), subjects), heads, bodies)


def on_the_wire(message: Received) -> bytes:
    number, subject, reply, head, body = message
    to = b"%b %d %b" % (subject, number, reply + b" " if reply else b"")
    if head:
        return b"HMSG %b%d %d\r\n%b%b\r\n" % (to, len(head), len(head) + len(body), head, body)
    return b"MSG %b%d\r\n%b\r\n" % (to, len(body), body)


def collecting(received: list[Received], numbers: Iterable[int]) -> dict[int, Receiver]:
    def receiver(number: int) -> Receiver:
        return lambda *message: received.append((number, *message))

    return {number: receiver(number) for number in numbers}


def splitting(receivers: dict[int, Receiver], is_up: Callable[[], bool] = lambda: True) -> Splitter:
    return Splitter(receivers, lambda line: False, is_up)


def cut(stream: bytes, at: Iterable[int]) -> list[bytes]:
    ends = sorted({end for each in at if 0 < (end := each % (len(stream) + 1)) < len(stream)})
    return [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]


def read_by_nats_py(stream: bytes) -> list[Received]:
    received: list[Received] = []

    class Client:
        async def _process_msg(
            self, number: int, subject: bytes, reply: bytes, body: bytes, head: bytes | None
        ) -> None:
            received.append((number, subject, reply, head or b"", body))

    async def read() -> None:
        parser: Any = Parser(Client())
        await parser.parse(stream)

    asyncio.run(read())
    return received


@given(st.lists(messages, min_size=1, max_size=8), st.lists(st.integers(0, 60_000), max_size=12))
def test_every_message_arrives_once_whole_and_in_order_however_the_stream_is_cut(
    sent: list[Received], at: list[int]
) -> None:
    received: list[Received] = []
    splitter = splitting(collecting(received, (1, 2, 3)))
    stream = b"".join(map(on_the_wire, sent))
    for part in cut(stream, at):
        assert splitter.take(part) == b""
    assert received == sent == read_by_nats_py(stream)


@given(st.lists(messages, max_size=4), st.lists(st.integers(0, 60_000), max_size=12))
@pytest.mark.parametrize("other", [b"PING\r\n", b"+OK\r\n", b"MSG a 9 2\r\nhi\r\n", b"MSG odd\r\n"])
def test_lines_for_nats_py_are_given_back_whole_and_in_order(other: bytes, sent: list[Received], at: list[int]) -> None:
    received: list[Received] = []
    splitter = splitting(collecting(received, (1, 2, 3)))
    stream = other.join([b"", *map(on_the_wire, sent), b""])
    given_back = b"".join(splitter.take(part) for part in cut(stream, at))
    assert given_back == other * (len(sent) + 1)
    assert received == sent


@given(st.lists(messages, max_size=4), st.lists(st.integers(0, 60_000), max_size=12))
def test_lines_for_the_bus_are_not_given_back(sent: list[Received], at: list[int]) -> None:
    received: list[Received] = []
    lines: list[bytes] = []

    def is_ours(line: bytes) -> bool:
        lines.append(line)
        return True

    splitter = Splitter(collecting(received, (1, 2, 3)), is_ours, lambda: True)
    stream = b"-ERR 'x'\r\n".join([b"", *map(on_the_wire, sent), b""])
    assert b"".join(splitter.take(part) for part in cut(stream, at)) == b""
    assert lines == [b"-ERR 'x'\r\n"] * (len(sent) + 1)
    assert received == sent


def test_a_message_whose_subscription_ended_while_it_came_is_not_received() -> None:
    received: list[Received] = []
    receivers = collecting(received, (1, 2))
    splitter = splitting(receivers)
    assert splitter.take(b"MSG a 1 4\r\nab") == b""
    del receivers[1]
    assert splitter.take(b"cd\r\nMSG b 2 1\r\nx\r\n") == b"MSG a 1 4\r\nabcd\r\n", "nats-py skips it"
    assert received == [(2, b"b", b"", b"", b"x")]


@pytest.mark.parametrize("begun", [b"MSG a 1 4\r\nab", b"MSG a"])
def test_a_message_cut_off_by_a_break_does_not_continue_on_the_next_connection(begun: bytes) -> None:
    received: list[Received] = []
    splitter = splitting(collecting(received, (1,)))
    assert splitter.take(begun) == b""
    splitter.forget()
    assert splitter.take(b"MSG b 1 1\r\nx\r\n") == b""
    assert received == [(1, b"b", b"", b"", b"x")]


def test_nothing_is_handed_on_after_a_receiver_found_the_connection_broken() -> None:
    received: list[Received] = []
    splitter = splitting(collecting(received, (1,)), lambda: not received)
    stream = b"MSG a 1 1\r\nx\r\nMSG b 1 1\r\ny\r\n"
    assert splitter.take(stream) == b""
    assert received == [(1, b"a", b"", b"", b"x")]
