"""How large an answer may be."""

from smcp_bus.dispatch import Call
from smcp_bus.headers import REPLY_LIMIT


def reply_limit(call: Call, max_body: int) -> int:
    """Bytes: what the asker's client takes, where its gateway says that, and at most what the bus does."""
    said = call.headers.get(REPLY_LIMIT, "")
    return min(int(said), max_body) if said.isascii() and said.isdigit() and len(said) < 20 else max_body
