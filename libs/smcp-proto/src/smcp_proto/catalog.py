"""The one table of all events: what they carry, who may send them, how they are acknowledged; and the versions of the
protocol that a client may state at connect (`?a2c_version=`). And the trace id of a request, from its `req_id`.

Adding an event is adding a row and a handler: the dispatcher, the documents and the tests read it.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel

from smcp_proto import schemas
from smcp_proto.member_names import Role

Prefix = Literal["client", "server", "notify"]

AGENT: Final[frozenset[Role]] = frozenset({"agent"})
COMPUTER: Final[frozenset[Role]] = frozenset({"computer"})
MEMBER: Final[frozenset[Role]] = frozenset({"agent", "computer"})
NOBODY: Final[frozenset[Role]] = frozenset()

INTERNAL_VERBS: Final = frozenset({"pending"})
"""Verbs on a Computer's subject that processes of ours use among themselves: no event of a client becomes one."""


class Ack(Enum):
    """How the event is acknowledged on Socket.IO."""

    REPLY = "reply"
    """One argument: the reply model's JSON, or the flat error."""
    DONE = "done"
    """One argument: the array `[true, null]` or `[false, "why"]` (join_office, leave_office). A client that reads flat
    errors gets `[false, "why", details]`."""
    NOTHING = "nothing"
    """`null`, or the flat error."""
    NONE = "none"
    """A notification: receivers do not acknowledge it. A client that may send it gets the ack of `NOTHING`."""


class TimeClass(Enum):
    """How long the server side may take over the event."""

    CALL = "call"
    """As long as the request's own `timeout` says (1 to 3600 s)."""
    QUERY = "query"
    """30 s: a query to a Computer."""
    ROOM = "room"
    """10 s: a query to the registry."""
    NOTICE = "notice"
    """Nobody waits."""


class SizeClass(Enum):
    """How large a request may be."""

    BODY = "body"
    """Up to a quarter of the limit of an answer (8 MiB where `SMCP_MAX_PAYLOAD` is 32 MiB)."""
    SMALL = "small"
    """64 KiB: names, ids, filters."""


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
    receivers: frozenset[Role] = MEMBER
    """Of a notification: the roles that receive it. The member that caused it does not."""
    metered: bool = False
    """MCP servers work for each of these requests: how many of them a session and an office may send is limited."""


_VERB = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESOURCES: Final = "computer.txt, Resources 能力扩展"
_COMPLETION: Final = "finder.txt, 自动补全"
_CAPABILITIES: Final = "computer.txt, Resources 能力扩展 4.2"
_UNKNOWN: Final = "design, unknown events"
_OURS: Final = "ours, no page has it"


def verb_of(event: str) -> str:
    """An event's last token on the bus: what follows the prefix, with `_` for `/`."""
    return event.partition(":")[2].replace("/", "_")


def _client(
    event: str,
    request: type[BaseModel],
    reply: type[BaseModel],
    source: str = "",
    *,
    time_class: TimeClass = TimeClass.QUERY,
    size: SizeClass = SizeClass.SMALL,
    metered: bool = False,
) -> Row:
    source, verb = source or f"events.txt, {event}", verb_of(event)
    return Row(event, request, reply, AGENT, verb, Ack.REPLY, time_class, size, None, source, metered=metered)


def _update(name: str, request: type[BaseModel], source: str = "") -> Row:
    """An update that a Computer sends, and the notification that the office gets for it."""
    event, notifies = f"server:{name}", f"notify:{name}"
    source = source or f"events.txt, {event}"
    size, time_class = SizeClass.SMALL, TimeClass.ROOM
    return Row(event, request, None, COMPUTER, verb_of(event), Ack.NOTHING, time_class, size, notifies, source)


def _notify(name: str, request: type[BaseModel], source: str = "") -> Row:
    event = f"notify:{name}"
    source = source or f"events.txt, {event}"
    return Row(event, request, None, NOBODY, verb_of(event), Ack.NONE, TimeClass.NOTICE, source=source)


def _said(name: str, request: type[BaseModel]) -> Row:
    """A notification that a Computer on Socket.IO may send itself; the office's Agent receives it."""
    event, time_class = f"notify:{name}", TimeClass.NOTICE
    return Row(event, request, None, COMPUTER, verb_of(event), Ack.NONE, time_class, source=_RESOURCES, receivers=AGENT)


_ROWS: Final = (
    # Agent → Computer
    _client(
        "client:tool_call", schemas.ToolCallReq, schemas.CallToolResult,
        time_class=TimeClass.CALL, size=SizeClass.BODY,
    ),
    _client("client:get_config", schemas.GetComputerConfigReq, schemas.GetComputerConfigRet),
    _client("client:get_tools", schemas.GetToolsReq, schemas.GetToolsRet),
    _client("client:get_status", schemas.GetStatusReq, schemas.GetStatusRet, _OURS),
    _client("client:get_desktop", schemas.GetDeskTopReq, schemas.GetDeskTopRet, metered=True),
    _client("client:get_finder", schemas.GetFinderReq, schemas.GetFinderRet, metered=True),
    _client("client:resources/list", schemas.ListResourcesReq, schemas.ResourceRet, _RESOURCES, metered=True),
    _client("client:resources/read", schemas.ReadResourceReq, schemas.ResourceRet, _RESOURCES, metered=True),
    _client(
        "client:resources/templates/list", schemas.ListResourceTemplatesReq, schemas.ResourceRet, _RESOURCES,
        metered=True,
    ),
    _client(
        "client:resources/subscribe", schemas.SubscribeResourceReq, schemas.ResourceRet, _RESOURCES, metered=True
    ),
    _client("client:resources/unsubscribe", schemas.UnsubscribeResourceReq, schemas.ResourceRet, _RESOURCES),
    _client("client:completion/complete", schemas.CompleteReq, schemas.ResourceRet, _COMPLETION, metered=True),
    _client("client:prompts/list", schemas.ListPromptsReq, schemas.ResourceRet, _OURS, metered=True),
    _client("client:prompts/get", schemas.GetPromptReq, schemas.ResourceRet, _OURS, metered=True),
    # member → registry
    Row(
        "server:join_office", schemas.EnterOfficeReq, None, MEMBER, "join_office",
        Ack.DONE, TimeClass.ROOM, source="events.txt, server:join_office",
    ),
    Row(
        "server:leave_office", schemas.LeaveOfficeReq, None, MEMBER, "leave_office",
        Ack.DONE, TimeClass.ROOM, source="events.txt, server:leave_office",
    ),
    Row(
        "server:list_room", schemas.ListRoomReq, schemas.ListRoomRet, MEMBER, "list_room",
        Ack.REPLY, TimeClass.ROOM, source="events.txt, server:list_room",
    ),
    Row(
        "server:tool_call_cancel", schemas.AgentCallData, None, AGENT, "tool_call_cancel",
        Ack.NOTHING, TimeClass.ROOM, notifies="notify:tool_call_cancel", source="events.txt, Server 事件",
    ),
    _update("update_config", schemas.UpdateComputerConfigReq),
    _update("update_tool_list", schemas.UpdateToolListNotification),
    _update("update_desktop", schemas.UpdateComputerConfigReq),
    _update("update_finder", schemas.UpdateComputerConfigReq),
    _update("update_capabilities", schemas.UpdateCapabilitiesReq, _CAPABILITIES),
    # what a native Computer tells the registry; one on Socket.IO says the notification itself
    _update("resources/list_changed", schemas.ResourceListChangedNotification, _RESOURCES),
    _update("resources/updated", schemas.ResourceUpdatedNotification, _RESOURCES),
    Row(
        schemas.TOOL_PROGRESS, schemas.ToolProgressReq, None, COMPUTER, "tool_progress",
        Ack.NOTHING, TimeClass.ROOM, source=_OURS,
    ),
    # registry → office
    _notify("enter_office", schemas.EnterOfficeNotification),
    _notify("leave_office", schemas.LeaveOfficeNotification),
    _notify("update_config", schemas.UpdateMCPConfigNotification),
    _notify("update_tool_list", schemas.UpdateToolListNotification),
    _notify("update_desktop", schemas.UpdateComputerConfigReq),
    _notify("update_finder", schemas.UpdateComputerConfigReq),
    _notify("tool_call_cancel", schemas.AgentCallData),
    _notify("update_capabilities", schemas.UpdateCapabilitiesReq, _CAPABILITIES),
    _said("resources/list_changed", schemas.ResourceListChangedNotification),
    _said("resources/updated", schemas.ResourceUpdatedNotification),
    # the gateway of a call → the Agent that waits for it
    Row(
        schemas.TOLD_OF_PROGRESS, schemas.ToolProgressNotification, None, NOBODY, "tool_progress",
        Ack.NONE, TimeClass.NOTICE, source=_OURS, receivers=AGENT,
    ),
)  # fmt: skip

CATALOG: Final[Mapping[str, Row]] = MappingProxyType({row.event: row for row in _ROWS})
"""All known events by name."""

_BY_VERB: Final[Mapping[tuple[str, str], Row]] = MappingProxyType(
    {(row.event.partition(":")[0], row.verb): row for row in _ROWS}
)


def lookup(event: str) -> Row | None:
    """The row of an event; also of an unknown one that is passed on as it is.

    That is a `client:*`, `server:update_*` or `notify:update_*` whose verb matches `[a-z][a-z0-9_]{0,63}`, is
    not the verb of a known row under the same prefix, and is not one of `INTERNAL_VERBS`. None: not an event.
    """
    known = CATALOG.get(event)
    if known is not None:
        return known
    prefix, _, verb = event.partition(":")
    if (prefix, verb) in _BY_VERB:
        return None  # `client:resources_list` is not another way to say `client:resources/list`
    return _unknown(prefix, verb)


def by_verb(prefix: Prefix, verb: str) -> Row | None:
    """The row of what arrives on the bus under `prefix` with `verb`; unknown ones as in `lookup`."""
    return _BY_VERB.get((prefix, verb)) or _unknown(prefix, verb)


def upstream(row: Row) -> Row | None:
    """The `server:` row of a notification that a Computer may say itself (`notify:resources/*`)."""
    return _BY_VERB.get(("server", row.verb)) if row.event.startswith("notify:") and row.senders else None


SAID_AS: Final[Mapping[str, str]] = MappingProxyType({up.event: row.event for row in _ROWS if (up := upstream(row))})
"""What native Computers tell the registry, and what is said to a gateway in its place."""


def _unknown(prefix: str, verb: str) -> Row | None:
    if not _VERB.fullmatch(verb):
        return None
    if prefix == "client" and verb not in INTERNAL_VERBS:
        return _client(
            f"client:{verb}", schemas.UnknownClientReq, schemas.UnknownRet, _UNKNOWN,
            size=SizeClass.BODY, metered=True,  # what it costs is not known: `client:get_resources` asks an MCP server
        )  # fmt: skip
    if verb.startswith("update_"):
        if prefix == "server":
            return _update(verb, schemas.UnknownUpdate, _UNKNOWN)
        if prefix == "notify":
            return _notify(verb, schemas.UnknownUpdate, _UNKNOWN)
    return None


SERVER_VERSION: Final = "0.4.0"
MIN_SUPPORTED: Final = "0.2.0"
MAX_SUPPORTED: Final = "0.4.999"
"""As clients compare it: any patch of 0.4."""

REFUSED: Final = 4008
_LEAST: Final = (0, 2)
_MOST: Final = (0, 4)
_MAX_SHOWN: Final = 64
_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
_VERSION: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")


class VersionRefusal(BaseModel):
    """The body of the HTTP 400 that a client of another version gets; flat, not an `ErrorBody`."""

    code: Literal[4008] = REFUSED
    message: str
    server_version: str = SERVER_VERSION
    client_version: str
    min_supported: str = MIN_SUPPORTED
    max_supported: str = MAX_SUPPORTED


def refuse_version(client_version: str | None) -> VersionRefusal | None:
    """Return why a client that says `client_version` is refused; None: it is welcome. Without a version it speaks the
    dialect of the protocol pages; otherwise major and minor count: 0.2 to 0.4."""
    if client_version is None:
        return None
    shown = client_version[:_MAX_SHOWN]
    match = _VERSION.fullmatch(client_version)
    if match is None:
        return VersionRefusal(message="a2c_version: a version is MAJOR.MINOR.PATCH", client_version=shown)
    if _LEAST <= (int(match[1]), int(match[2])) <= _MOST:
        return None
    return VersionRefusal(
        message=f"protocol version {shown} is not supported; supported are {MIN_SUPPORTED} to {MAX_SUPPORTED}",
        client_version=shown,
    )


TRACE_ID_KEY: Final = "smcp.trace_id"
"""Under this key of the OpenTelemetry context the root span's trace id (an int) is handed to the id generator."""
_HEX_ID: Final = re.compile(r"[0-9a-f]{32}")


def hex_trace_id(req_id: str) -> int:
    """The trace id of a `req_id` that is one, else 0."""
    return int(req_id, 16) if _HEX_ID.fullmatch(req_id) else 0


def trace_id(office: str, agent: str, req_id: str) -> int:
    """The trace id (128 bits, never zero) of a request: a `req_id` of 32 lower-case hex digits, not all zero. Any other
    is hashed with the office and the agent, each with its length before it, so that no two triples are mixed up."""
    if known := hex_trace_id(req_id):
        return known
    digest = hashlib.blake2b(digest_size=16, person=b"smcp-trace-id")
    for part in (office, agent, req_id):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "big") or 1
