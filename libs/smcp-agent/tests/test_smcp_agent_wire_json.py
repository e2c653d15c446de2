import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_agent.connecting.transport import WireJson, packet_class
from smcp_agent.errors import Malformed, TooLarge

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def encode(packet: Any) -> Any:
    return packet.encode()


@given(JSON)
def test_json_goes_through_a_packet_unchanged(value: Any) -> None:
    packet = packet_class(WireJson(10_000_000))
    encoded = encode(packet(data=["event", value], namespace="/smcp", id=3))
    decoded = packet(encoded_packet=encoded)
    assert (decoded.namespace, decoded.id, decoded.data) == ("/smcp", 3, ["event", value])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", object(), {1, 2}, "\ud800", {(1, 2): 3}])
def test_a_value_without_a_json_form_is_refused_before_sending(value: object) -> None:
    with pytest.raises(Malformed, match=r"JSON|surrogate|keys"):
        encode(packet_class(WireJson(1000))(data=["event", {"params": {"x": value}}], namespace="/smcp"))


@pytest.mark.parametrize(
    ("data", "field", "what"),
    [
        ({"keywords": ["a", "\ud800"]}, "keywords.1", "contains an unpaired surrogate"),
        ({"params": {"x": (1, float("nan"))}}, "params.x.1", "Out of range float values are not JSON compliant"),
        ({"params": {"x": {"y": b""}}}, "params.x.y", "Object of type bytes is not JSON serializable"),
        ({"params": {"x": {"\ud800": 1}}}, "params.x", "contains an unpaired surrogate"),
        ({"params": {(1, 2): 3}}, "params", "keys must be str, int, float, bool or None, not tuple"),
        ({"params": {1: {None: object()}}}, "params.1.None", "Object of type object is not JSON serializable"),
    ],
)
def test_the_error_for_a_value_without_a_json_form_names_its_field(data: Any, field: str, what: str) -> None:
    with pytest.raises(Malformed) as refused:
        WireJson(1000).dumps(["event", data])
    assert refused.value.message == f"{field}: {refused.value.details['reason']}"
    assert refused.value.details["field"] == field
    assert refused.value.details["reason"].startswith(what)


def test_a_circular_value_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(Malformed, match=r"^cannot be encoded as JSON: "):
        WireJson(1000).dumps(["event", endless])


def test_a_value_that_is_nested_too_deep_is_refused_in_words() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(Malformed, match=r"^cannot be encoded as JSON: maximum recursion depth exceeded"):
        WireJson(100_000).dumps(["event", {"params": deep}])


def test_the_limit_counts_bytes_not_characters() -> None:
    assert json.loads(WireJson(8).dumps("好好")) == "好好"
    with pytest.raises(TooLarge) as caught:
        WireJson(7).dumps("好好")
    assert caught.value.details == {"limit": 7, "size": 8}


def test_the_error_names_the_payload_limit_that_the_server_carries() -> None:
    wire_json = WireJson(7)
    wire_json.limit(1024 * 1024 + 64 * 1024)
    assert len(wire_json.dumps("x" * 1_100_000)) == 1_100_002  # its 413 is the server's to say
    with pytest.raises(TooLarge) as caught:
        wire_json.dumps("x" * 1_114_112)
    assert caught.value.details == {"limit": 1024 * 1024, "size": 1_114_114}


def test_bad_surrogates_do_not_pass_as_text() -> None:
    with pytest.raises(Malformed):
        WireJson(100).dumps(["\udfff"])
