"""Legal names, and their tokens in subjects and keys."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from smcp_proto.member_names import MAX_NAME_LENGTH, Name, check_name, decode_name, encode_name

KEY = re.compile(r"\A[-/_=.a-zA-Z0-9]+\Z")
"""What JetStream takes as a key."""

anything = st.text(max_size=200)
names = (
    st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=MAX_NAME_LENGTH)
    .map(lambda text: unicodedata.normalize("NFC", text))
    .filter(lambda text: len(text) <= MAX_NAME_LENGTH)
)


class Named(BaseModel):
    name: Name


@pytest.mark.rule("answers.names.reversible")
@given(names)
@example("a.b")
@example("*")
@example(">")
@example("=2A")
@example("办公室 1")
@example(" ")
@example("$SYS")
def test_a_name_survives_encoding(name: str) -> None:
    assert decode_name(encode_name(name)) == name


@pytest.mark.rule("answers.names.narrow")
@given(names)
def test_a_token_never_widens_a_subject_and_is_a_legal_key(name: str) -> None:
    token = encode_name(name)
    assert not set(token) & set(".*> \t\r\n%$/")
    assert KEY.fullmatch(token)
    assert token.isascii()


@given(anything)
def test_any_text_is_a_name_or_a_value_error(text: str) -> None:
    try:
        name = check_name(text)
    except ValueError:
        return
    assert check_name(name) == name
    assert 1 <= len(name) <= MAX_NAME_LENGTH
    assert decode_name(encode_name(name)) == name


@given(st.text("abcZ09_-=AF.*> é中", max_size=40))
def test_only_canonical_tokens_are_decoded(token: str) -> None:
    try:
        name = decode_name(token)
    except ValueError:
        return
    assert encode_name(name) == token


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a b",
        "=2e",  # lower-case hex
        "=41",  # `A` needs no escape
        "=E4=B8",  # half a character
        "=FF",
        "=",
        "=2",
        "=00",  # a control character is in no name
        "e=CC=81",  # not NFC
        "a" * (MAX_NAME_LENGTH + 1),
        "a\n",
    ],
)
def test_a_token_that_no_name_has_is_refused(token: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- the message is not for peers
        decode_name(token)


@pytest.mark.rule("answers.names.token")
@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("office-1_A", "office-1_A"),
        ("a.b", "a=2Eb"),
        ("*", "=2A"),
        (">", "=3E"),
        ("a b", "a=20b"),
        ("a=b", "a=3Db"),
        ("办", "=E5=8A=9E"),
        ("e\u0301", "=C3=A9"),
    ],
)
def test_names_are_encoded_like_this_in_subjects(name: str, token: str) -> None:
    assert encode_name(check_name(name)) == token


@pytest.mark.rule("answers.names.length", "answers.names.control")
@pytest.mark.parametrize("name", ["", "a" * 129, "a" * 10_000, "a\x00", "a\nb", "\x7f", "\x85", "\ud800"])
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"a name has|a control character"):
        check_name(name)


@pytest.mark.rule("answers.names.nfc", "answers.names.length", "answers.names.text")
@pytest.mark.parametrize(
    "name", ["a" * 128, "办" * 128, "e\u0301" * 128, "a.b", "a b", "*", ">", " ", "😀", "a/b", "\u200fא\u200d"]
)
def test_user_text_is_a_name(name: str) -> None:
    assert check_name(name) == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize("value", [1, None, b"a", ["a"], True])
def test_a_value_that_is_no_string_is_no_name(value: object) -> None:
    with pytest.raises(ValidationError):
        Named.model_validate({"name": value})
