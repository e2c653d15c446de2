"""Secrets are found in texts, however they are written there."""

import base64
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from smcp_bus import exact_json
from smcp_computer.config.file import parse_config
from smcp_computer.mcp.errors import LONGEST_TEXT, RequestRefused, ServerFailed
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.sdk_adapter import Watch
from smcp_computer.mcp.server_log import LONGEST_LINE, MAX_LINE, StderrLog
from smcp_computer.mcp.stdio import parsed
from smcp_computer.redaction import MAX_ERROR, SHOWN, Redactor, secrets_of

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
    ascii([SECRET]),
    repr(SECRET.encode()),
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


@pytest.mark.parametrize("secret", ["/a-secret-1", "\\\\a-secret-1\\\\", "a-secret-1/", "é-a-secret-1"])
def test_a_run_of_backslashes_does_not_hold_up_others(secret: str) -> None:
    redactor = Redactor()
    redactor.learn([secret])
    began = time.process_time()
    run = "\\" * 200_000
    text = f"secret {run} a-secret-1{run}"
    assert redactor.redact(f"{secret}; {text}") == f"<redacted>; {text}"
    assert time.process_time() - began < 1


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
    value = {"isError": True, "content": [{"type": "text", "text": f"key {SECRET}"}], "n": 1, f"of {SECRET}": None}
    content = [{"type": "text", "text": "key <redacted>"}]
    assert redactor.redact_json(value) == {"isError": True, "content": content, "n": 1, "of <redacted>": None}


def test_a_number_and_a_short_word_behind_a_control_character_are_redacted_in_a_failure() -> None:
    redactor = Redactor()
    redactor.learn(["4711", "abcd"])
    for before in "\n\b\f\0\x1b":
        value = {"text": f"key:{before}abcd", "n": 2**70}
        assert redactor.redact_json(value) == {"text": f"key:{before}<redacted>", "n": 2**70}
    assert redactor.redact_json({"pin": 4711}) == '{"pin":<redacted>}'


LONG = "canary" + 10 * "0123456789"
"""Longer than what any text is cut by; the beginning of it must not be left."""


def knowing() -> Redactor:
    redactor = Redactor()
    redactor.learn([LONG])
    return redactor


def up_to(border: int) -> str:
    """A text in which that border goes through the secret."""
    return "x " * ((border - 20) // 2) + LONG + " y" * border


def received(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    """As everything else sees it."""
    Watch("box", knowing()).received(SessionMessage(message))
    return message


def failure(text: str, data: Any = None) -> types.ErrorData:
    refused = types.ErrorData(code=types.INVALID_PARAMS, message=text, data=data)
    answer = received(types.JSONRPCError(jsonrpc="2.0", id=1, error=refused))
    assert isinstance(answer, types.JSONRPCError)
    return answer.error


def test_a_refusal_that_an_agent_gets_has_no_beginning_of_a_secret() -> None:
    error = failure(up_to(LONGEST_TEXT))
    refused = RequestRefused("box", error.code, error.message, error.data)
    assert len(refused.said) == LONGEST_TEXT
    assert "canary" not in refused.said


def test_a_warning_about_a_long_uri_has_no_beginning_of_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    events = ServerEvents(knowing())
    events.warn("box", f"{events.shown(up_to(SHOWN))} is too large")
    assert len(caplog.text) > SHOWN
    assert "canary" not in caplog.text


def test_a_log_of_a_server_has_no_beginning_of_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = StderrLog("box", tmp_path, knowing().redact)
    log.process_started()
    log.wrote(up_to(MAX_LINE))
    log.wrote(up_to(LONGEST_LINE))
    log.failed(MCPError(code=-32603, message=up_to(LONGEST_LINE)), "it is started again", was_ready=False)
    parsed(up_to(200), log, max_message=1_000_000)
    log.process_started()  # of these lines the log shows the last ones, when the process has ended
    log.wrote(up_to(LONGEST_LINE))
    log.status = 1
    log.failed(ServerFailed("went away"), "it is started again", was_ready=True)
    assert "it said last: " in caplog.messages[-1]
    log.close()
    (file,) = tmp_path.iterdir()
    for told in (caplog.messages[-1], caplog.text, file.read_text()):
        assert told.count("x x x") >= 1
        assert "canary" not in told


def test_what_is_too_large_is_refused_for_a_fraction_of_what_it_costs_to_write_it() -> None:
    value = {"content": [{"type": "text", "text": '\n"\\' * 10 * MAX_ERROR}], "isError": True, "n": 2**70}
    began = time.process_time()
    exact_json.written(value)
    written = time.process_time()
    with pytest.raises(ValueError, match="too large"):
        Redactor().redact_json(value)
    assert time.process_time() - written < (written - began) / 10


LARGE_TEXT = LONG + "x" * MAX_ERROR


@pytest.mark.parametrize("said", [LARGE_TEXT, [LONG, *[0] * MAX_ERROR], {LARGE_TEXT: 1}], ids=["text", "list", "field"])
def test_a_failure_that_is_too_large_to_be_redacted_while_others_wait_is_left_out_and_says_so(said: Any) -> None:
    result = {"isError": True, "content": [], "structuredContent": {"said": said}}
    answer = received(types.JSONRPCResponse(jsonrpc="2.0", id=1, result=result))
    assert isinstance(answer, types.JSONRPCResponse)
    assert answer.result["isError"] is True
    assert f"has more than {MAX_ERROR} bytes, and is left out" in answer.result["content"][0]["text"]
    error = failure("no", said)
    assert "is left out" in error.message
    assert error.data is None


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
            "env": {
                "LOG": "debug",
                "PORT": "8080",
                "KEY": "${input:k}",
                "X": "some-value",
                "MY_TOKEN": "plain",
                "SPACE": "hunter",
                "PIN": "471100",
                "AGENT": "one of several",
            },
        },
        "b": {
            "url": "https://u5er@host/mcp/?k=v4l&b=${input:k}",
            "headers": {"Accept": "text/html, */*;q=0.5", "Authorization": "Bearer abcdef", "X-Space": "hunter"},
        },
    }
    config = parse_config(json.dumps({"mcpServers": document, "inputs": []}))
    assert set(secrets_of(config.servers["a"])) == {
        "t0k", "pass1234", "me:pw", "eu", "some-value", "plain", "hunter", "471100", "one of several",
    }  # fmt: skip
    assert set(secrets_of(config.servers["b"])) == {"u5er", "v4l", "Bearer abcdef", "abcdef", "hunter"}
