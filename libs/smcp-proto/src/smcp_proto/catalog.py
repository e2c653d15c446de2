"""The one table of all events: what they carry, who may send them, how they are acknowledged; and the versions of the
protocol that a client may state at connect (`?a2c_version=`). And the trace id of a request, from its `req_id`.

Adding an event is adding a row and a handler: the dispatcher, the documents and the tests read it.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel

from smcp_proto import schemas
from smcp_proto.member_names import Role

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


NAMESPACE: Final = "/smcp"
"""Of Socket.IO."""
ENVELOPE_BYTES: Final = 64
"""What a packet adds to the JSON of its argument, at most: types, the namespace, an id."""
HEADROOM: Final = 64 * 1024
"""Bytes by which a message may exceed the limit of a payload (`SMCP_MAX_PAYLOAD`), so that 413 can answer it."""
QUERY_S: Final = 30.0
"""How long a query to a Computer may take (seconds)."""
ROOM_S: Final = 10.0
"""The same of a query to the registry, tries included."""
GRACE_S: Final = 2.0
"""Seconds that a client waits beyond a request's time, so that the 408 of the server reaches it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One event of the protocol, or of the contract between processes."""

    event: str
    request: type[BaseModel]
    reply: type[BaseModel] | None = None
    senders: frozenset[Role] = MEMBER
    ack: Ack = Ack.REPLY
    seconds: float | None = ROOM_S
    """How long the server side may take; None: as long as the request's own `timeout` says (1 to 3600 s)."""
    is_large: bool = False
    """Its requests have up to a quarter of the limit of an answer (8 MiB where `SMCP_MAX_PAYLOAD` is 32 MiB); those of
    others 64 KiB: names, ids, filters."""
    notifies: str | None = None
    """The event that a `server:*` event becomes for the rest of the office; None: it tells nobody, or the log does."""
    source: str = ""
    """Where the protocol says it: page and section."""
    receivers: frozenset[Role] = MEMBER
    """Of a notification: the roles that receive it. The member that caused it does not."""
    metered: bool = False
    """MCP servers work for each of these requests: how many of them a session and an office may send is limited."""
    verb: str = field(init=False)
    """The last token on the bus."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "verb", verb_of(self.event))


_VERB = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESOURCES: Final = "computer.txt, Resources 能力扩展"
_CAPABILITIES: Final = "computer.txt, Resources 能力扩展 4.2"
_UNKNOWN: Final = "design, unknown events"
_OURS: Final = "ours, no page has it"


def verb_of(event: str) -> str:
    """An event's last token on the bus: what follows the prefix, with `_` for `/`."""
    return event.partition(":")[2].replace("/", "_")


_USUAL: Final[Mapping[str, Mapping[str, Any]]] = {
    "client": {"senders": AGENT, "seconds": QUERY_S},
    "server": {"senders": COMPUTER, "ack": Ack.NOTHING},
    "notify": {"senders": NOBODY, "ack": Ack.NONE},
}
"""What most events of a prefix have."""


def _row(
    event: str, request: type[BaseModel], reply: type[BaseModel] | None = None, source: str = "", **more: Any
) -> Row:
    fields = {**_USUAL[event.partition(":")[0]], **more}
    return Row(event, request, reply, source=source or f"events.txt, {event}", **fields)


def _update(name: str, request: type[BaseModel], source: str = "") -> Row:
    """An update that a Computer sends; the office gets a notification of the same name."""
    return _row(f"server:{name}", request, None, source, notifies=f"notify:{name}")


_ROWS: Final = (
    # Agent → Computer
    _row(
        "client:tool_call", schemas.ToolCallReq, schemas.CallToolResult, seconds=None, is_large=True
    ),
    _row("client:get_config", schemas.GetComputerConfigReq, schemas.GetComputerConfigRet),
    _row("client:get_tools", schemas.GetToolsReq, schemas.GetToolsRet),
    _row("client:get_status", schemas.GetStatusReq, schemas.GetStatusRet, _OURS),
    _row("client:get_desktop", schemas.GetDeskTopReq, schemas.GetDeskTopRet, metered=True),
    _row("client:get_finder", schemas.GetFinderReq, schemas.GetFinderRet, metered=True),
    *(
        _row(f"client:{name}", request, schemas.ResourceRet, source, metered=name != "resources/unsubscribe")
        for name, request, source in (
            ("resources/list", schemas.ListResourcesReq, _RESOURCES),
            ("resources/read", schemas.ReadResourceReq, _RESOURCES),
            ("resources/templates/list", schemas.ListResourceTemplatesReq, _RESOURCES),
            ("resources/subscribe", schemas.SubscribeResourceReq, _RESOURCES),
            ("resources/unsubscribe", schemas.UnsubscribeResourceReq, _RESOURCES),
            ("completion/complete", schemas.CompleteReq, "finder.txt, 自动补全"),
            ("prompts/list", schemas.ListPromptsReq, _OURS),
            ("prompts/get", schemas.GetPromptReq, _OURS),
        )
    ),
    # member → registry
    _row("server:join_office", schemas.EnterOfficeReq, senders=MEMBER, ack=Ack.DONE),
    _row("server:leave_office", schemas.LeaveOfficeReq, senders=MEMBER, ack=Ack.DONE),
    _row("server:list_room", schemas.ListRoomReq, schemas.ListRoomRet, senders=MEMBER, ack=Ack.REPLY),
    _row(
        "server:tool_call_cancel", schemas.AgentCallData, None, "events.txt, Server 事件",
        senders=AGENT, notifies="notify:tool_call_cancel",
    ),
    _update("update_config", schemas.UpdateComputerConfigReq),
    _update("update_tool_list", schemas.UpdateToolListNotification),
    _update("update_desktop", schemas.UpdateComputerConfigReq),
    _update("update_finder", schemas.UpdateComputerConfigReq),
    _update("update_capabilities", schemas.UpdateCapabilitiesReq, _CAPABILITIES),
    # what a native Computer tells the registry; one on Socket.IO says the notification itself
    _update("resources/list_changed", schemas.ResourceListChangedNotification, _RESOURCES),
    _update("resources/updated", schemas.ResourceUpdatedNotification, _RESOURCES),
    _row(schemas.TOOL_PROGRESS, schemas.ToolProgressReq, None, _OURS),
    # registry → office
    _row("notify:enter_office", schemas.EnterOfficeNotification),
    _row("notify:leave_office", schemas.LeaveOfficeNotification),
    _row("notify:update_config", schemas.UpdateMCPConfigNotification),
    _row("notify:update_tool_list", schemas.UpdateToolListNotification),
    _row("notify:update_desktop", schemas.UpdateComputerConfigReq),
    _row("notify:update_finder", schemas.UpdateComputerConfigReq),
    _row("notify:tool_call_cancel", schemas.AgentCallData),
    _row("notify:update_capabilities", schemas.UpdateCapabilitiesReq, None, _CAPABILITIES),
    # a Computer on Socket.IO may send these itself; the office's Agent receives them
    _row(
        "notify:resources/list_changed", schemas.ResourceListChangedNotification, None, _RESOURCES,
        senders=COMPUTER, receivers=AGENT,
    ),
    _row(
        "notify:resources/updated", schemas.ResourceUpdatedNotification, None, _RESOURCES,
        senders=COMPUTER, receivers=AGENT,
    ),
    # the gateway of a call → the Agent that waits for it
    _row(schemas.TOLD_OF_PROGRESS, schemas.ToolProgressNotification, None, _OURS, receivers=AGENT),
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


def by_verb(prefix: str, verb: str) -> Row | None:
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
        # metered, as what it costs is not known: `client:get_resources` asks an MCP server
        more = {"is_large": True, "metered": True}
        return _row(f"client:{verb}", schemas.UnknownClientReq, schemas.UnknownRet, _UNKNOWN, **more)
    if prefix == "server" and verb.startswith("update_"):
        return _update(verb, schemas.UnknownUpdate, _UNKNOWN)
    if prefix == "notify" and verb.startswith("update_"):
        return _row(f"notify:{verb}", schemas.UnknownUpdate, None, _UNKNOWN)
    return None


SERVER_VERSION: Final = "0.4.0"
MIN_SUPPORTED: Final = "0.2.0"
MAX_SUPPORTED: Final = "0.4.999"
"""As clients compare it: any patch of 0.4."""

_MAX_SHOWN: Final = 64
_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
_VERSION: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")


class VersionRefusal(BaseModel):
    """The body of the HTTP 400 that a client of another version gets; flat, not an `ErrorBody`."""

    code: Literal[4008] = 4008
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
    if match is not None and match[1] == "0" and match[2] in ("2", "3", "4"):
        return None
    why = f"protocol version {shown} is not supported; supported are {MIN_SUPPORTED} to {MAX_SUPPORTED}"
    return VersionRefusal(message=why if match else "a2c_version: a version is MAJOR.MINOR.PATCH", client_version=shown)


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
