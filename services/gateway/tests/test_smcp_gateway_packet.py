"""What a client sends is cut, never parsed twice, and never raises."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.dispatch import Answer, failed
from smcp_gateway.sockets.packet import (
    AUTH_BYTES,
    GATHERED,
    OVERSIZED,
    UNREADABLE,
    ClientAck,
    ClientConnect,
    ClientDisconnect,
    ClientEvent,
    ack_argument,
    ack_frame,
    event_frame,
    read_packet,
    request_frame,
)
from smcp_proto.catalog import CATALOG
from smcp_proto.errors import NotAllowed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def event(text: str) -> ClientEvent:
    packet = read_packet(text.encode())
    assert isinstance(packet, ClientEvent)
    return packet


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace")))
def test_nothing_that_a_client_sends_makes_reading_raise(anything: bytes) -> None:
    read_packet(anything)


@given(st.sampled_from([b"2", b"2/smcp,", b"2/smcp,17", b'2/smcp,1["', b"3", b"51-/smcp,4", b"0/smcp,"]), st.binary())
def test_nothing_after_a_valid_head_makes_reading_raise(head: bytes, rest: bytes) -> None:
    read_packet(head + rest)


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.integers(0, 10**30))
def test_an_event_is_split_into_its_name_and_the_bytes_of_its_argument(name: str, payload: Any, number: int) -> None:
    text = json.dumps(payload, ensure_ascii=False)
    try:
        text.encode()
        quoted = orjson.dumps(name).decode()
    except (UnicodeEncodeError, orjson.JSONEncodeError):
        return
    read = event(f"2/smcp,{number}[{quoted},{text}]")
    assert (read.id, read.name, read.body, read.fault) == (number, name, text.encode(), None)


def test_numbers_are_not_changed() -> None:
    assert event('2/smcp,1["client:x",{"n":123456789012345678901234567890,"f":1.10}]').body == (
        b'{"n":123456789012345678901234567890,"f":1.10}'
    )


def test_several_arguments_are_left_to_the_dispatcher() -> None:
    read = event('2/smcp,1["client:x",{},{}]')
    assert (read.id, read.name, read.body, read.fault) == (1, "client:x", b"{},{}", None)


def test_an_unterminated_name_is_read_fast() -> None:
    assert event('2/smcp,1["' + "a\\" * 1_000_000).fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('2/smcp,5["client:x"]', None),
        ('2/smcp,5["client:x",]', "not a JSON array"),
        ('2/smcp,5["client:x" {}]', "not a JSON array"),
        ('2/smcp,5["client:x",{}', "begins with its name"),
        ("2/smcp,5[17,{}]", "begins with its name"),
        ("2/smcp,5{}", "begins with its name"),
        ("2/smcp,5", "begins with its name"),
        ('2/smcp,5["\\ud800",{}]', "name is not a string"),
        ('51-/smcp,5["client:x",{"_placeholder":true,"num":0}]', "binary"),
        ('59999999999-/smcp,5["client:x"]', "binary"),
    ],
)
def test_an_unreadable_event_keeps_its_acknowledgement_id(text: str, fault: str | None) -> None:
    packet = event(text)
    assert packet.id == 5
    assert packet.body is None
    assert packet.fault is None if fault is None else fault in str(packet.fault)


@pytest.mark.parametrize(
    "anything", [b"\x00\x01", b"", b"9[]", b"x", b"451-[1]", b"3/smcp,[]", b"6/smcp,[]", b"2/other,1[]"]
)
def test_unexpected_packets_are_ignored(anything: bytes) -> None:
    assert read_packet(anything) is None


def test_acknowledgements_keep_their_id_when_they_cannot_be_read() -> None:
    assert read_packet(b'3/smcp,7[{"a":1}]') == ClientAck(7, b'{"a":1}')
    assert read_packet(b'3/smcp,7[{"a":1},[]] \n') == ClientAck(7, b'{"a":1},[]')
    assert read_packet(b"3/smcp,7[]") == ClientAck(7, b"")
    for broken in (b"3/smcp,7", b"3/smcp,7[", b"3/smcp,7]", b'3/smcp,7{"a":1}', b'61-/smcp,7[{"_placeholder":true}]'):
        assert read_packet(broken) == ClientAck(7, None)


def test_packets_of_unauthenticated_clients_are_read_only_up_to_a_limit() -> None:
    just = b'{"token":"%b"}' % (b"x" * (AUTH_BYTES - 12))
    assert len(just) == AUTH_BYTES
    assert isinstance(read_packet(b"0/smcp," + just), ClientConnect)
    assert read_packet(b"0/smcp," + just) != ClientConnect("/smcp", OVERSIZED)
    assert read_packet(b"0/smcp," + just + b" ") == ClientConnect("/smcp", OVERSIZED)
    assert read_packet(b"0/smcp," + b"[" * (AUTH_BYTES + 1)) == ClientConnect("/smcp", OVERSIZED), "it is not read"
    assert read_packet(b"0" + b"[" * (AUTH_BYTES + 1)) == ClientConnect("/", OVERSIZED)


def test_a_request_is_written_as_socket_io_says() -> None:
    assert request_frame(12, "client:get_tools", b'{"a":1}').wire == b'42/smcp,12["client:get_tools",{"a":1}]'


def test_a_large_frame_is_not_copied_and_knows_its_whole_size() -> None:
    body = b'{"a":"%b"}' % (b"x" * GATHERED)
    frame = request_frame(12, "client:get_tools", body)
    assert any(part is body for part in frame.parts)
    whole = b'42/smcp,12["client:get_tools",' + body + b"]"
    assert (frame.size, b"".join(frame.parts), frame.wire) == (len(whole), whole, whole)


def test_connecting_and_disconnecting_are_read() -> None:
    assert read_packet(b'0/smcp,{"max_message":17}') == ClientConnect("/smcp", {"max_message": 17})
    assert read_packet(b"0/smcp,") == ClientConnect("/smcp", None)
    assert read_packet(b"0/smcp,{") == ClientConnect("/smcp", UNREADABLE)
    assert read_packet(b"0/smcp?x=1,{}") == ClientConnect("/smcp", {})
    assert read_packet(b"0") == ClientConnect("/", None)
    assert read_packet(b"0/\xff,") == ClientConnect("/\ufffd", None)
    assert read_packet(b"1/smcp,") == ClientDisconnect()


@given(JSON, st.integers(0, 10**30))
def test_an_acknowledgement_is_written_around_its_json(value: Any, number: int) -> None:
    try:
        body = orjson.dumps(value)
    except (orjson.JSONEncodeError, TypeError):
        return
    text = ack_frame(number, body).encode()
    head, _, rest = text.partition("[")
    assert head == f"43/smcp,{number}"
    assert json.loads(f"[{rest}") == [json.loads(body)]


def test_a_notification_is_written_as_socket_io_says() -> None:
    assert event_frame("notify:update_config", b'{"computer":"a"}').wire == (
        b'42/smcp,["notify:update_config",{"computer":"a"}]'
    )


JOIN, LEAVE = CATALOG["server:join_office"], CATALOG["server:leave_office"]
CALL, UPDATE = CATALOG["client:tool_call"], CATALOG["server:update_config"]
REFUSED = failed(NotAllowed("taken").body())
LARGE = 1 << 22


@pytest.mark.rule("answers.acks.details")
def test_a_client_that_reads_flat_errors_gets_the_details_of_a_refused_join_or_leave() -> None:
    details = {"holder": "anna", "since": "2026-01-31T12:00:00Z"}
    taken = failed(NotAllowed("taken", details=details).body())
    for row in (JOIN, LEAVE):
        assert orjson.loads(ack_argument(row, taken, flat_errors=True)) == [False, "403 taken", details]
        assert ack_argument(row, taken, flat_errors=False) == b'[false,"403 taken"]'
        assert ack_argument(row, REFUSED, flat_errors=True) == b'[false,"403 taken",{}]'
        assert ack_argument(row, Answer(b""), flat_errors=True) == b"[true,null]"
