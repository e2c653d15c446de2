"""The names of the headers on the bus. A header is never an identity, but for `SUBJECT`: gateways alone may publish on
the subjects of requests to Computers, and one speaks for all Agents of an office.
"""

from typing import Final

BUDGET: Final = "Smcp-Budget"
"""Request: the time that is left for it, in whole milliseconds."""
ERROR: Final = "Smcp-Error"
"""Reply: the code of a flat error; the body is the `ErrorBody`. Absent: a plain success."""
NOT_RUN: Final = "Smcp-Not-Run"
"""Reply with an error: `1` where the owner was gated or not ready, so that asking again is safe; `moving` where
the Computer is just on its way to that owner or away from it."""
CLAIM: Final = "Smcp-Claim"
"""Request to the registry: the `Claim` that goes with an event, as JSON (ASCII)."""
EPOCH: Final = "Smcp-Epoch"
"""Notification of an enter or a leave: `2 * revision` for a leave, `2 * revision + 1` for an enter."""
PROGRESS: Final = "Smcp-Progress"
"""Request `tool_call`: `1` where the asker reads notes of the tool's progress. They come before the reply, to the same
subject, each with this header alone (`smcp_bus.tool_progress`). An older asker would take one for the reply."""
PROOF: Final = "Smcp-Proof"
"""Request to the registry: what this process says in its lease, too, where nobody but registries reads it."""
AFTER: Final = "Smcp-After"
"""Request to the registry: the revision that its view must have reached before it answers."""
REQ_ID: Final = "Smcp-Req-Id"
"""The id of an event whose payload has no `req_id`; the gateway gives it one."""
NOTIFICATION_ID: Final = "Smcp-Notification-Id"
"""Request to the registry to publish a notification, and that notification: an id. A request that was sent to two
registries is published twice with one id, and gateways drop the second one."""
SUBJECT: Final = "Smcp-Subject"
"""Request to a Computer, and cancel: the identity of the Agent's key or token (`Principal.identity`), which a new token
of the same subject keeps. Absent: no authentication."""
RIGHTS: Final = "Smcp-Rights"
"""Request to a Computer: what the Agent's key or token allows (`callers.Rights`), as JSON. Absent as `SUBJECT`."""
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
