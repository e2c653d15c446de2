"""What the documents say in words: what no model and no table of the code holds."""

from collections.abc import Mapping
from typing import Final

from smcp_bus import headers
from smcp_proto.catalog import Ack
from smcp_proto.errors import ErrorCode

OVERVIEW: Final = """\
An Agent (an LLM application) uses the tools of Computers (hosts that run MCP servers) that share an office (a room).
Agents connect to a gateway over Socket.IO; a Computer connects to it in the same way, or speaks NATS itself. This
document is written from the gateway's side: what it receives and what it sends.

Every request that asks for an acknowledgement gets one. On Socket.IO an acknowledgement is one argument: the reply,
`null`, the array `[true, null]`, `[false, "why"]` or `[false, "why", details]`, or a flat error. If a tool
fails, the reply is not an error but a `CallToolResult` with `isError: true`. Its `meta` has `a2c_timeout`,
`a2c_cancelled`, `a2c_result_expired` or `a2c_input_required` if that is the reason.

Structures allow fields that they do not know, and a relay keeps them. Types are strict: a string is not an integer. A
field that may be absent is absent rather than null.
"""

ERRORS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.MALFORMED: "the request is not what this document says; `details.field` names the field",
    ErrorCode.NOT_AUTHENTICATED: "who connects has not shown who it is",
    ErrorCode.NOT_ALLOWED: "not for this role, for somebody else, or about another office",
    ErrorCode.NOT_FOUND: "no such Computer in this office; the answer is the same for one in another office",
    ErrorCode.TIMED_OUT: "no answer within the time that the request gave",
    ErrorCode.TOO_LARGE: "above a limit: `details.limit` (bytes), and `details.size` where it is known",
    ErrorCode.RATE_LIMITED: "too much at a time",
    ErrorCode.INTERNAL: "a fault of the server; its text is only logged",
    ErrorCode.UNAVAILABLE: "not now; `details.may_have_run` says whether the call may have run",
    ErrorCode.VERSION_REFUSED: "another protocol version: HTTP 400 before Socket.IO, its body is a VersionRefusal",
    ErrorCode.NOT_IN_OFFICE: "the caller is in no office, or not in that one",
}

COMMON_ERRORS: Final = (
    ErrorCode.MALFORMED, ErrorCode.NOT_AUTHENTICATED, ErrorCode.NOT_ALLOWED, ErrorCode.TOO_LARGE,
    ErrorCode.RATE_LIMITED, ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE, ErrorCode.NOT_IN_OFFICE,
)  # fmt: skip
"""What any request may be answered with."""
CLIENT_ERRORS: Final = (ErrorCode.NOT_FOUND, ErrorCode.TIMED_OUT)
"""What a request to a Computer may be answered with, too."""

ACKS: Final[Mapping[Ack, str]] = {
    Ack.REPLY: "one argument: the reply, or the flat error",
    Ack.DONE: "one argument, an array: `[true, null]`, or `[false, why]`; with `flat_errors`, `[false, why, details]`",
    Ack.NOTHING: "one argument: null, or the flat error",
    Ack.NONE: "none: nobody acknowledges a notification",
}

SECURITY: Final[Mapping[str, Mapping[str, str]]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key or a JWT, where the gateway asks who connects: a header of the first request.",
    },
    "token": {
        "type": "apiKey",
        "in": "password",
        "description": "The same in Socket.IO's `auth` object, as `token`.",
    },
}
"""How a client says who it is. Any of them will do; a gateway that listens on loopback only may ask for none."""

METERED: Final = "so many a second for a session and for an office; above it 429 with `details.retry_after_s`"

HEADERS: Final[Mapping[str, str]] = {
    headers.BUDGET: "request: the time that is left for it, in whole milliseconds",
    headers.REQ_ID: "request: the id of an event whose payload has no `req_id`",
    headers.CLAIM: "request to the registry: the claim that goes with the event, as JSON",
    headers.PROOF: "request to the registry: the `proof` of its sender's lease",
    headers.AFTER: "request to the registry: the revision that its view must have reached",
    headers.NOTIFICATION_ID: "request for a notification, and that notification: receivers drop a second one",
    headers.SUBJECT: "request to a Computer, cancel: the identity of the Agent's key or token; absent without either",
    headers.RIGHTS: "request to a Computer: what the Agent's key or token allows, as JSON; absent as Smcp-Subject",
    headers.PROGRESS: "request tool_call: `1` where the tool's progress is read; before the reply: a note of it",
    headers.TRACEPARENT: "W3C trace context",
    headers.TRACESTATE: "W3C trace context",
    headers.ERROR: "reply: the code of a flat error, which the body is; absent: a plain success",
    headers.NOT_RUN: "reply with an error: nothing was run, so that asking again is safe; `moving`: the Computer moves",
    headers.EPOCH: "notification of an enter or a leave: receivers drop what is not newer than what they had",
}
"""Headers on NATS. An identity is in the subject, but for an Agent's, which its gateway tells the Computer."""
REQUEST_HEADERS: Final = (
    headers.BUDGET, headers.REQ_ID, headers.CLAIM, headers.PROOF, headers.AFTER,
    headers.NOTIFICATION_ID, headers.SUBJECT, headers.RIGHTS,
    headers.PROGRESS, headers.TRACEPARENT, headers.TRACESTATE,
)  # fmt: skip
REPLY_HEADERS: Final = (headers.ERROR, headers.NOT_RUN)
NOTICE_HEADERS: Final = (
    headers.EPOCH,
    headers.NOTIFICATION_ID,
    headers.SUBJECT,
    headers.TRACEPARENT,
    headers.TRACESTATE,
)
