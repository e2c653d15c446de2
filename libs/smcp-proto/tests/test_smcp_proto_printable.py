"""Foreign text for a terminal."""

import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.printable import did_you_mean, is_url, printable, printable_json

UNSEEN = "".join(map(chr, [*range(0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]))
OBEYED = set(UNSEEN) - set(map(chr, range(0x20, 0x7F))) - {"\t"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m \x9b1mbold\x1b]52;c;eA==\x07!", "red bold!"),
        ("a\x07b\x00c\x1bd", "a�b�c�d"),
        ("one\r\ntwo\rthree\u2028four\x85five\n", "one two three four five "),
        ("txt\u202eexe\u2066 \u200bx\ufeff\ud800", "txt�exe� �x��"),
        ("a\ufe00b\U000e0041c\U000e01efd\u3164e\u115ff\u2800g\u034fh\u00ad", "a�b�c�d�e�f�g�h�"),
        ("❤\ufe0f", "❤\ufe0f"),
        ("a\tb 深 👩\u200d🔬 می\u200cخواهم", "a\tb 深 👩\u200d🔬 می\u200cخواهم"),
    ],
)
def test_what_a_terminal_obeys_or_hides_is_not_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_of_all_kinds_stay_where_a_text_may_have_lines() -> None:
    assert printable("one\r\ntwo\u2028\tthree\n", newline="\n") == "one\ntwo\n\tthree\n"


@given(st.text(alphabet=st.sampled_from(UNSEEN + "[];m0深")))
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert not OBEYED & set(printable(text))
    assert not OBEYED & set(printable_json([text, {text: text}], indent=None))


def test_json_for_a_terminal_is_read_back_as_it_was() -> None:
    value = {UNSEEN: [UNSEEN, "\ud800", "深\u200d🙂", "\U000e0041\U000e0100"]}
    text = printable_json(value)
    assert json.loads(text) == value
    assert "\\udb40\\udc41\\udb40\\udd00" in text
    assert "深\u200d🙂" in text
    assert printable_json([1, 2], indent=None) == "[1, 2]"


def test_a_similar_name_is_suggested_at_a_bounded_cost() -> None:
    tools = [*(f"tool_{number}" for number in range(500)), "git_log"]
    assert did_you_mean("gitLgo", tools) == "; did you mean 'git_log'?"
    assert did_you_mean("ad", ["vs__add", "vs__sub"]) == "; did you mean 'vs__add'?"
    assert did_you_mean("addd", ["add", "vs__add"]) == "; did you mean 'add'?"
    assert did_you_mean("x" * 200, ["x" * 201]) == ""
    chance = random.Random(1)
    name, *others = ("".join(chance.sample("ab" * 64, 128)) for _ in range(1001))
    began = time.thread_time()
    assert did_you_mean(name, others)
    assert time.thread_time() - began < 0.6, "2 s, each of them compared in full"


@pytest.mark.parametrize("url", ["http://h", "HTTPS://h:1/path?x#y", "http://user:secret@[::1]:65535"])
def test_a_url_has_a_scheme_that_is_meant_and_a_host(url: str) -> None:
    assert is_url(url)
    assert not is_url(url, {"ws"})


@pytest.mark.parametrize(
    "text",
    ["", "h:1", "http://", "http://:1", "ftp://h", "http://h:0", "http://h:65536", "http://[", None, 5, ["http://h"]],
)
def test_what_is_no_url_is_told_without_an_error(text: object) -> None:
    assert not is_url(text)
