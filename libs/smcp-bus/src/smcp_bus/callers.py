"""Tells the owner of a Computer who calls: the subject and the rights of the Agent's key or token.

Its gateway puts it into headers of the request on the bus, where nats-server lets gateways alone send requests to
Computers. The gateway of a Computer on Socket.IO passes it on in the field `a2c_caller`, if that Computer asked for it
with a key of its own (`caller_key` in `auth`): a field without that key was written by an Agent, and an older gateway
passed it on. It also holds the gateway's span, if the request is traced.
"""

import hmac
from collections.abc import Mapping
from typing import Any, Final

from smcp_bus import caller_rights
from smcp_bus.bus import NO_HEADERS, Headers
from smcp_bus.dispatch import Caller
from smcp_bus.headers import RIGHTS, SUBJECT, TRACEPARENT, TRACESTATE

CALLER_KEY: Final = "caller_key"
"""The field of `auth` in Socket.IO's CONNECT."""
FIELD: Final = "a2c_caller"
"""The field of a request: `{"key", "subject", "rights"?, "traceparent"?, "tracestate"?}`."""


def to_headers(caller: Caller) -> Headers:
    """Of a request to a Computer."""
    if caller.rights is None:
        return NO_HEADERS
    return {SUBJECT: caller.subject, RIGHTS: caller_rights.written(caller.rights)}


def from_headers(headers: Headers, office: str) -> Caller:
    said = headers.get(RIGHTS)
    return Caller(
        role="agent",
        office=office,
        subject=headers.get(SUBJECT, ""),
        rights=None if said is None else caller_rights.read(said),
    )


def with_caller(
    payload: Mapping[str, Any], caller: Caller, key: str | None, trace: Headers = NO_HEADERS
) -> Mapping[str, Any]:
    """The request for a Computer on Socket.IO.

    Args:
        key: None: it did not ask to be told.
        trace: of the gateway's span, which is the parent of the Computer's; in place of what the Agent said. A
            Computer without a key gets no field that the Agent did not write.
    """
    if trace and (key is not None or TRACEPARENT in payload):
        payload = {**payload, TRACEPARENT: trace[TRACEPARENT]}
    if key is None:
        return payload
    told: dict[str, Any] = {"key": key, "subject": caller.subject, **trace}
    if caller.rights is not None:
        told["rights"] = caller_rights.as_json(caller.rights)
    return {**payload, FIELD: told}


def from_request(body: object, office: str, key: str) -> tuple[Caller, Headers]:
    """The caller of a request that a gateway sent to a Computer with that key, and the headers of its span."""
    match body:
        case {"a2c_caller": {"key": str(said), "subject": str(subject), **more}} if _same(said, key):
            known = more.get("rights")
            allowed = None if known is None else caller_rights.from_json(known)
            trace = {name: span for name in (TRACEPARENT, TRACESTATE) if isinstance(span := more.get(name), str)}
            return Caller(role="agent", office=office, subject=subject, rights=allowed), trace
    return Caller(role="agent", office=office), NO_HEADERS


def _same(said: str, key: str) -> bool:
    return hmac.compare_digest(said.encode(errors="replace"), key.encode())
