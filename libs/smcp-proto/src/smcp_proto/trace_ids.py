"""The trace id of a request, computed from its `req_id`."""

import hashlib
import re
from typing import Final

TRACE_ID_KEY: Final = "smcp.trace_id"
"""Under this key of the OpenTelemetry context the root span's trace id (an int) is handed to the id generator."""

_HEX: Final = re.compile(r"[0-9a-f]{32}")


def hex_trace_id(req_id: str) -> int:
    """The trace id of a `req_id` that is one, else 0."""
    return int(req_id, 16) if _HEX.fullmatch(req_id) else 0


def trace_id(office: str, agent: str, req_id: str) -> int:
    """Return the trace id (128 bits, never zero) of the request `req_id` of `agent` in `office`.

    A `req_id` of 32 lower-case hex digits that are not all zero is the trace id. Any other is hashed together with
    the office and the agent, each with its length before it, so that no two triples are mixed up.
    """
    if known := hex_trace_id(req_id):
        return known
    digest = hashlib.blake2b(digest_size=16, person=b"smcp-trace-id")
    for part in (office, agent, req_id):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "big") or 1
