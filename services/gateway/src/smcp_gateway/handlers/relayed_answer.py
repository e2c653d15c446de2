"""What a Computer answered, as it goes on to the Agent that asked. Pure."""

import logging
from typing import Any, Final

import orjson

from smcp_bus.bus import Reply
from smcp_bus.dispatch import RawJson
from smcp_bus.headers import ERROR
from smcp_bus.registry_client import to_error
from smcp_proto.errors import Internal
from smcp_proto.surrogates import mended

_log = logging.getLogger("smcp_gateway.relay")

DEEPEST: Final = 254
"""Levels of an answer, as many as orjson writes. Readers of JSON in other languages have bounds, too; Python's own
raises at some 950, and then python-socketio tells nobody that the answer came."""


def checked(reply: Reply) -> RawJson:
    """The answer as it goes on. A Computer must not be able to break the Agent's connection with what is no JSON.

    Raises:
        SmcpError: what the Computer answered; Internal: its answer is no JSON, or nested too deeply.
    """
    if ERROR in reply.headers:
        raise to_error(reply)
    body = reply.body
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        body = _mended(body)
        value = orjson.loads(body)
    if _may_be_too_deep(body) and _is_too_deep(value):
        raise Internal(f"the Computer's answer is nested more than {DEEPEST} levels deep")
    return RawJson(body)


def _may_be_too_deep(body: bytes) -> bool:
    """Whether so many objects and lists begin in it, also in its strings."""
    return _has_more(body, b"{", DEEPEST // 2) or _has_more(body, b"[", DEEPEST // 2)


def _has_more(body: bytes, what: bytes, most: int) -> bool:
    """Whether it stands there more than so many times. To find the next one costs a twentieth of `count`, which goes
    byte by byte; and where there are many, the first of them are soon found."""
    at = body.find(what)
    while at >= 0 and most > 0:
        at = body.find(what, at + 1)
        most -= 1
    return at >= 0


def _is_too_deep(value: Any) -> bool:
    """Whether the writer, which goes no deeper, refuses it. It has a few ms for what was 32 MiB of text."""
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


def _mended(body: bytes) -> bytes:
    """An answer that may be JSON but for halves of surrogate pairs, which only a native Computer takes out of what MCP
    servers send.

    Raises:
        Internal: it is no JSON.
    """
    try:
        whole = mended(body).encode()
        orjson.loads(whole)
    except ValueError:
        raise Internal("the Computer's answer is not JSON") from None
    _log.info("halves of surrogate pairs in a Computer's answer were replaced by U+FFFD")
    return whole
