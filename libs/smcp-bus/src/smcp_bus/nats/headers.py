"""The header block of a NATS message, as bytes: written and read without an object in between."""

from typing import Final

from smcp_bus.bus import NO_HEADERS, Headers
from smcp_bus.headers import BUDGET

_LINE: Final = "NATS/1.0\r\n"
_NO_RESPONDERS: Final = b"NATS/1.0 503"


def encode_head(headers: Headers) -> bytes:
    """The block that goes before a body; empty where there are no headers.

    Raises:
        ValueError: a name or value holds a line break.
    """
    return _block([f"{name}: {value}" for name, value in headers.items()]) if headers else b""


def encode_request_head(headers: Headers, budget_ms: int) -> bytes:
    """The block of a request: its time budget, then `headers`.

    Raises:
        ValueError: a name or value holds a line break.
    """
    if not headers:
        return f"{_LINE}{BUDGET}: {budget_ms}\r\n\r\n".encode()
    return _block([f"{BUDGET}: {budget_ms}", *(f"{name}: {value}" for name, value in headers.items())])


def _block(lines: list[str]) -> bytes:
    text = "\r\n".join(lines)
    breaks = len(lines) - 1
    # A value that came from a peer must not write a header of its own, or end the block.
    if text.count("\n") != breaks or text.count("\r") != breaks:
        raise ValueError("a header holds a line break")
    return f"{_LINE}{text}\r\n\r\n".encode()


def decode_head(head: bytes) -> Headers:
    """The headers of a block; lines that are none are skipped, a status in the first line as well."""
    if not head:
        return NO_HEADERS
    headers: dict[str, str] = {}
    for line in head.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers


def is_no_responders(head: bytes, body: bytes) -> bool:
    """Whether this is nats-server saying that nobody listens on the subject of a request."""
    return not body and head.startswith(_NO_RESPONDERS)
