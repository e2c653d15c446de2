"""Secrets are found in texts, however they are written there."""

import base64
import json
from urllib.parse import quote, quote_plus, urlencode

import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.config.secret_detection import secrets_of
from smcp_computer.redaction import Redactor

SECRET = 'p w/ö"\\+&=?ünd'
FORMS = [
    SECRET,
    quote(SECRET),
    quote(SECRET, safe=""),
    quote(SECRET, safe="").lower(),
    quote_plus(SECRET),
    quote(SECRET, safe="/+=&?"),
    quote(quote(SECRET, safe="/+")),
    urlencode({"key": SECRET}),
    json.dumps(SECRET),
    json.dumps(SECRET, ensure_ascii=False),
    json.dumps({"line": json.dumps({"key": SECRET})}),
    repr([SECRET]),
    *(base64.b64encode(before + SECRET.encode() + b"!").decode() for before in (b"", b"u", b"u:", b"user:")),
    base64.urlsafe_b64encode(b"user:" + SECRET.encode()).decode(),
]


@pytest.mark.parametrize("text", FORMS)
def test_a_secret_is_found_escaped_too(text: str) -> None:
    redactor = Redactor()
    redactor.learn([SECRET])
    redacted = redactor.redact(f"before {text} after")
    assert "<redacted>" in redacted
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")
    for part in (SECRET, quote(SECRET), json.dumps(SECRET)[1:-1], base64.b64encode(SECRET.encode()).decode()[:12]):
        assert part not in redacted


def test_a_log_line_of_json_stays_json() -> None:
    redactor = Redactor()
    redactor.learn([SECRET, "7" * 8])
    line = json.dumps({"level": "info", "event": f"GET http://x/?k={quote(SECRET)} {SECRET}"})
    assert json.loads(redactor.redact(line)) == {"level": "info", "event": "GET http://x/?k=<redacted> <redacted>"}


def test_the_lines_of_a_long_secret_are_found_one_by_one() -> None:
    redactor = Redactor()
    redactor.learn(["-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEFAAS\n"])
    assert redactor.redact("read MIIEvQIBADANBg") == "read <redacted>"


def test_a_short_secret_is_a_word_of_its_own_and_a_very_short_one_is_not_looked_for() -> None:
    redactor = Redactor()
    redactor.learn(["abcd", "no", ""])
    assert redactor.redact("abcd, xabcd, abcde: no") == "<redacted>, xabcd, abcde: no"


def test_a_longer_secret_is_replaced_before_one_that_is_a_part_of_it() -> None:
    redactor = Redactor()
    redactor.learn(["secret-11"])
    redactor.learn(["secret-11-and-more"])
    assert redactor.redact("secret-11-and-more secret-11") == "<redacted> <redacted>"


def test_all_strings_of_a_value_are_redacted_and_nothing_else() -> None:
    redactor = Redactor()
    redactor.learn([SECRET])
    value = {"isError": True, "content": [{"type": "text", "text": f"key {SECRET}"}], "n": 1, "none": None}
    content = [{"type": "text", "text": "key <redacted>"}]
    assert redactor.redact_all(value) == {"isError": True, "content": content, "n": 1, "none": None}


def test_the_literals_of_a_server_that_are_secret() -> None:
    document = {
        "a": {
            "command": "/opt/run",
            "args": [
                "serve",
                "--token",
                "t0k",
                "--max-tokens=4096",
                "password=pass1234",
                "https://me:pw@host/?region=eu",
            ],
            "env": {"LOG": "debug", "PORT": "8080", "KEY": "${input:k}", "X": "some-value", "MY_TOKEN": "plain"},
        },
        "b": {
            "url": "https://u5er@host/mcp/?k=v4l&b=${input:k}",
            "headers": {"Accept": "text", "Authorization": "Bearer abcdef"},
        },
    }
    config = parse_config(json.dumps({"mcpServers": document, "inputs": []}))
    assert set(secrets_of(config.servers["a"])) == {"t0k", "pass1234", "me:pw", "some-value", "plain"}
    assert set(secrets_of(config.servers["b"])) == {"u5er", "v4l", "Bearer abcdef", "abcdef"}
