"""What an MCP server wrote, as messages for the session; what is none is told to the log."""

import mcp_types as types

from smcp_computer.mcp.lines import KEPT, Cut
from smcp_computer.mcp.stderr_log import StderrLog
from smcp_computer.mcp.unread import Unread, in_its_place, read_message


def parsed(text: str | Cut, log: StderrLog, max_message: int) -> types.JSONRPCMessage | None:
    """One message, or the error for who waits for one that is not read; None: there is nothing for anybody.

    Args:
        text: what the server wrote.
        max_message: bytes that it may have; for the error.
    """
    if isinstance(text, Cut):
        log.too_long(text.size, max_message)
        return in_its_place(text.head, text.tail, Unread(limit=max_message, size=text.size))
    if not text.strip():
        return None
    try:
        message, replaced = read_message(text)
    except ValueError:
        log.no_message(text)
        return in_its_place(text[:KEPT], text[-KEPT:], Unread())
    if replaced:
        log.mended()
    return message
