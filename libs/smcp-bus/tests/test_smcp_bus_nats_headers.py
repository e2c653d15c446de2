"""Header blocks as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.headers import BUDGET
from smcp_bus.nats.wire import decode_head, encode_head, is_no_responders

names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True)
values = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), max_size=30)


@given(st.dictionaries(names, values, max_size=5))
def test_a_written_header_block_is_read_back(headers: dict[str, str]) -> None:
    assert decode_head(encode_head(headers)) == headers


@given(st.dictionaries(names, values, max_size=5), st.integers(0, 10**9))
def test_a_request_carries_its_budget_beside_its_headers(headers: dict[str, str], budget: int) -> None:
    assert decode_head(encode_head(headers, budget)) == {BUDGET: str(budget), **headers}


@pytest.mark.parametrize(
    "bad", [{"a": "b\nc"}, {"a": "b\rc"}, {"a": "b\r\nc: d"}, {"a\r\nb": "c"}, {"a": "b", "c": "\n"}]
)
def test_a_line_break_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode_head(bad)
    with pytest.raises(ValueError, match="line break"):
        encode_head(bad, 1)


def test_no_headers_give_an_empty_block() -> None:
    assert encode_head({}) == b""
    assert decode_head(b"") == {}


def test_a_no_responders_status_is_distinguished_from_an_answer() -> None:
    assert is_no_responders(b"NATS/1.0 503\r\n\r\n", b"")
    assert not is_no_responders(b"NATS/1.0 503\r\n\r\n", b"{}")
    assert not is_no_responders(encode_head({"Smcp-Error": "503"}), b"")
    assert not is_no_responders(b"", b"")
