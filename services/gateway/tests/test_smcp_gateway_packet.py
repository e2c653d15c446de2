"""What a client sends is cut, never parsed twice, and never raises."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from socketio import packet as sio

from smcp_gateway.packet import EVENT_NAME, UNREADABLE, GatewayPacket, Inbound

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def read(text: str | bytes) -> GatewayPacket:
    return GatewayPacket(encoded_packet=text)


def inbound(text: str) -> Inbound:
    packet = read(text)
    assert packet.packet_type == sio.EVENT
    event, body = packet.data
    assert event == EVENT_NAME
    assert isinstance(body, Inbound)
    return body


@given(st.text() | st.binary())
def test_nothing_that_a_client_sends_makes_reading_raise(anything: str | bytes) -> None:
    read(anything)


@given(st.sampled_from(["2", "2/smcp,", "2/smcp,17", "3", "51-/smcp,4", "0/smcp,"]), st.text())
def test_nothing_behind_a_legal_head_makes_reading_raise(head: str, rest: str) -> None:
    read(head + rest)


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.integers(0, 10**30))
def test_an_event_is_cut_into_its_name_and_the_bytes_of_its_argument(name: str, payload: Any, number: int) -> None:
    text = json.dumps(payload, ensure_ascii=False)
    try:
        text.encode()
        quoted = orjson.dumps(name).decode()
    except (UnicodeEncodeError, orjson.JSONEncodeError):
        return
    packet = read(f"2/smcp,{number}[{quoted},{text}]")
    assert packet.id == number
    assert packet.namespace == "/smcp"
    assert packet.data == [EVENT_NAME, Inbound(name, text.encode())]


def test_numbers_are_not_touched() -> None:
    assert inbound('2/smcp,1["client:x",{"n":123456789012345678901234567890,"f":1.10}]').body == (
        b'{"n":123456789012345678901234567890,"f":1.10}'
    )


@pytest.mark.parametrize("name", ["connect", "disconnect", "*", "event", ""])
def test_no_name_reaches_a_handler_of_the_library(name: str) -> None:
    assert inbound(f'2/smcp,1["{name}",{{}}]') == Inbound(name, b"{}")


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
        ('51-/smcp,5["client:x",{"_placeholder":true,"num":0}]', "binary"),
        ('59999999999-/smcp,5["client:x"]', "binary"),
    ],
)
def test_what_cannot_be_read_keeps_the_id_of_its_acknowledgement(text: str, fault: str | None) -> None:
    packet = read(text)
    assert packet.id == 5
    assert packet.attachment_count == 0
    found = packet.data[1]
    assert found.body is None
    assert (found.fault is None) if fault is None else fault in found.fault


@pytest.mark.parametrize("anything", [b"\x00\x01", b"", "", "9[]", "x", "451-[1]", "6/smcp,1[]"])
def test_stray_packets_are_acknowledgements_that_nobody_waits_for(anything: str | bytes) -> None:
    packet = read(anything)
    assert packet.packet_type == sio.ACK
    assert packet.id is None


def test_a_handshake_is_parsed() -> None:
    assert read('0/smcp,{"max_message":17}').data == {"max_message": 17}
    assert read("0/smcp,").data is None
    assert read("0/smcp,{").data is UNREADABLE
    assert read("0/smcp?x=1,{}").namespace == "/smcp"


@given(JSON, st.integers(0, 10**9))
def test_an_acknowledgement_is_written_round_its_json(value: Any, number: int) -> None:
    try:
        body = orjson.dumps(value)
    except (orjson.JSONEncodeError, TypeError):
        return
    text = GatewayPacket(sio.ACK, namespace="/smcp", id=number, data=[body]).encode()
    head, _, rest = text.partition("[")
    assert head == f"3/smcp,{number}"
    assert json.loads(f"[{rest}") == [json.loads(body)]


def test_other_packets_are_written_as_socket_io_says() -> None:
    assert GatewayPacket(sio.CONNECT, {"sid": "a"}, namespace="/smcp").encode() == '0/smcp,{"sid":"a"}'
    assert GatewayPacket(sio.DISCONNECT, namespace="/smcp").encode() == "1/smcp,"
    assert GatewayPacket(sio.CONNECT_ERROR, {"message": "no"}, namespace="/smcp").encode() == '4/smcp,{"message":"no"}'
