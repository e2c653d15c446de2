"""Tells the owner of a Computer who calls: the subject of the Agent's key or token.

Its gateway puts it into headers of the request on the bus, where nats-server lets gateways alone send requests to
Computers. The gateway of a Computer on Socket.IO passes it on in the field `a2c_caller`, if that Computer asked for it
with a key of its own (`caller_key` in `auth`): a field without that key was written by an Agent, and an older gateway
passed it on.
"""

import hmac
from collections.abc import Mapping
from typing import Any, Final

from smcp_bus.bus import Headers
from smcp_bus.dispatch import Caller
from smcp_bus.headers import SUBJECT

CALLER_KEY: Final = "caller_key"
"""The field of `auth` in Socket.IO's CONNECT."""
FIELD: Final = "a2c_caller"
"""The field of a request: `{"key", "subject"}`."""


def to_headers(caller: Caller) -> Headers:
    return {SUBJECT: caller.subject} if caller.subject else {}


def from_headers(headers: Headers, office: str) -> Caller:
    return Caller(role="agent", office=office, subject=headers.get(SUBJECT, ""))


def with_caller(payload: Mapping[str, Any], caller: Caller, key: str | None) -> Mapping[str, Any]:
    """The request for a Computer on Socket.IO. `key` None: it did not ask to be told."""
    return payload if key is None else {**payload, FIELD: {"key": key, "subject": caller.subject}}


def from_request(body: object, office: str, key: str) -> Caller:
    """The caller of a request that a gateway sent to a Computer with that key."""
    match body:
        case {"a2c_caller": {"key": str(said), "subject": str(subject)}} if _same(said, key):
            return Caller(role="agent", office=office, subject=subject)
    return Caller(role="agent", office=office)


def _same(said: str, key: str) -> bool:
    return hmac.compare_digest(said.encode(errors="replace"), key.encode())
