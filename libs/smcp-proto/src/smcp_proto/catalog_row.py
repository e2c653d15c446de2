"""The shape of a row of the catalog: what is to be known of one event."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, get_args

from pydantic import BaseModel

from smcp_proto.ids import Role


class Ack(Enum):
    """How the event is acknowledged on Socket.IO."""

    REPLY = "reply"
    """One argument: the reply model's JSON, or the flat error."""
    DONE = "done"
    """One argument: the array `[true, null]` or `[false, "why"]` (join_office, leave_office)."""
    NOTHING = "nothing"
    """`null`, or the flat error."""
    NONE = "none"
    """A notification: who is told of it acknowledges nothing. A client that may say it gets what `NOTHING` says."""


class TimeClass(Enum):
    """How long the server side may take over the event."""

    CALL = "call"
    """As long as the request's own `timeout` says (1 to 3600 s)."""
    QUERY = "query"
    """30 s: a question to a Computer."""
    ROOM = "room"
    """10 s: a question to the registry."""
    NOTICE = "notice"
    """Nobody waits."""


class SizeClass(Enum):
    """How large a request may be."""

    BODY = "body"
    """Up to the bus's limit (`SMCP_MAX_PAYLOAD`, 32 MiB)."""
    SMALL = "small"
    """64 KiB: names, ids, filters."""


EVERYBODY: Final[frozenset[Role]] = frozenset(get_args(Role))


@dataclass(frozen=True, slots=True)
class Row:
    """One event of the protocol.

    `verb` is its last token on the bus (`resources/list` is `resources_list`). `notifies` is the event that a
    `server:*` event becomes for the rest of the office, None for those that tell nobody or where the log tells.
    """

    event: str
    request: type[BaseModel]
    reply: type[BaseModel] | None
    senders: frozenset[Role]
    verb: str
    ack: Ack
    time_class: TimeClass
    size: SizeClass = SizeClass.SMALL
    notifies: str | None = None
    source: str = ""
    """Where the protocol says it: page and section."""
    told: frozenset[Role] = EVERYBODY
    """Of a notification: members of which roles are told; whoever caused it is not."""
    metered: bool = False
    """MCP servers work for each of these requests: how many of them a session and an office may send is limited."""
