"""The document's messages, and the schemas of their payloads."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from docs.contract import words
from docs.contract.schemas import Document, component_schemas
from smcp_bus import registry_contract
from smcp_bus.registry_contract import Joined, Left
from smcp_proto.catalog import CATALOG, Ack, Row, VersionRefusal, upstream
from smcp_proto.errors import ErrorBody
from smcp_proto.schemas import UnknownClientReq, UnknownRet, UnknownUpdate

EXAMPLES: Final = Path(__file__).with_name("examples.json")
SCHEMAS: Final = "#/components/schemas/{model}"
ERROR: Final = "error"
NULL: Final = "done.null"
PAIR: Final = "done.pair"
SEAT_TAKEN_ACK: Final = [
    False,
    "403 the office already has an Agent: 'anna', since 2026-01-31T12:00:00Z",
    {"holder": "anna", "since": "2026-01-31T12:00:00Z"},
]
"""The acknowledgement of a join if the office already has an Agent."""

INTERNAL: Final = tuple(registry_contract.ROWS.values())
"""What processes ask each other beside the events."""
NOT_ON_BUS: Final = frozenset({"server:tool_progress", "notify:tool_progress"})
"""Events between a client and its gateway: over the bus they go as notes before a reply (ADR 0045)."""
BUS_REPLIES: Final[Mapping[str, type[BaseModel]]] = {"server:join_office": Joined, "server:leave_office": Left}
"""Where the registry's reply says more than the client's acknowledgement."""


def prefix_of(row: Row) -> str:
    """`client`, `server`, `notify`, `hosts` or `operators`."""
    return row.event.partition(":")[0]


def key_of(row: Row) -> str:
    """How a row is called in keys: `client.resources_list`."""
    return f"{prefix_of(row)}.{row.verb}"


def examples() -> Mapping[str, Mapping[str, Any]]:
    """By event: a `request`, and a `reply` where it is acknowledged."""
    read: Mapping[str, Mapping[str, Any]] = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    return read


def native_updates() -> list[Row]:
    """`server:` rows that only native Computers use: one on Socket.IO says the notification itself."""
    return [up for row in CATALOG.values() if (up := upstream(row)) is not None]


def socket_messages() -> list[str]:
    """The keys of what goes over Socket.IO."""
    native = native_updates()
    known = [row for row in CATALOG.values() if row not in native]
    keys = [key for row in known for key in (key_of(row), f"{key_of(row)}.reply" if row.reply else "") if key]
    return [*keys, *_shared()]


def messages(rows: Iterable[Row]) -> Document:
    shown = examples()
    found: Document = {}
    for row in rows:
        example = shown.get(row.event, {})
        found[key_of(row)] = _message(row, example)
        if row.reply is not None:
            found[f"{key_of(row)}.reply"] = {
                "name": f"{row.event}, reply",
                "payload": _ref(row.reply),
                "headers": _headers(words.REPLY_HEADERS),
                **_example(example, "reply"),
            }
    for event, reply in BUS_REPLIES.items():
        found[f"{key_of(CATALOG[event])}.reply"] = {
            "name": f"{event}, reply on NATS",
            "payload": _ref(reply),
            "headers": _headers(words.REPLY_HEADERS),
        }
    return found | _shared()


def _message(row: Row, example: Mapping[str, Any]) -> Document:
    kind = words.NOTICE_HEADERS if row.ack is Ack.NONE else words.REQUEST_HEADERS
    return {
        "name": row.event,
        "summary": " ".join((row.request.__doc__ or f"`{row.event}`.").split("\n\n")[0].split()),
        "payload": _ref(row.request),
        "headers": _headers(kind),
        **_example(example, "request"),
    }


def _shared() -> Document:
    pair: Document = {
        "oneOf": [
            {"type": "array", "items": [{"const": True}, {"type": "null"}], "minItems": 2, "maxItems": 2},
            {
                "type": "array",
                "items": [{"const": False}, {"type": "string"}, {"type": "object"}],
                "minItems": 2,
                "maxItems": 3,
            },
        ]
    }
    return {
        "client.unknown": {
            "name": "client:<verb>",
            "summary": "An event that the catalog does not know: relayed as it is to the Computer that it names.",
            "payload": _ref(UnknownClientReq),
        },
        "client.unknown.reply": {"name": "client:<verb>, reply", "payload": _ref(UnknownRet)},
        "server.update_unknown": {
            "name": "server:update_<what>",
            "summary": "An update that the catalog does not know: it becomes notify:update_<what>, as it is.",
            "payload": _ref(UnknownUpdate),
        },
        "notify.update_unknown": {"name": "notify:update_<what>", "payload": _ref(UnknownUpdate)},
        NULL: {"name": "done", "summary": words.ACKS[Ack.NOTHING], "payload": {"type": "null"}},
        PAIR: {
            "name": "joined or left, or not",
            "summary": words.ACKS[Ack.DONE],
            "payload": pair,
            "examples": [{"payload": [True, None]}, {"payload": SEAT_TAKEN_ACK[:2]}, {"payload": SEAT_TAKEN_ACK}],
        },
        ERROR: {
            "name": "flat error",
            "payload": _ref(ErrorBody),
            "headers": _headers(words.REPLY_HEADERS),
            "examples": [
                {"payload": {"code": 400, "message": "timeout: is missing", "details": {"field": "timeout"}}},
                {
                    "payload": {
                        "code": 404, "message": "no such Computer in this office: 'x'", "details": {"computer": "x"}
                    }
                },
            ],
        },
    }  # fmt: skip


def _example(example: Mapping[str, Any], part: str) -> Document:
    # an acknowledgement that is not an object stands at its own message
    return {"examples": [{"payload": example[part]}]} if isinstance(example.get(part), dict) else {}


def _headers(names: Iterable[str]) -> Document:
    properties = {name: {"type": "string", "description": words.HEADERS[name]} for name in names}
    return {"type": "object", "description": "On NATS; Socket.IO has none.", "properties": properties}


def _ref(model: type[BaseModel]) -> Document:
    return {"$ref": SCHEMAS.format(model=model.__name__)}


def schemas(rows: Iterable[Row]) -> Document:
    wanted = {kind for row in rows for kind in (row.request, row.reply) if kind is not None}
    wanted |= {*BUS_REPLIES.values(), UnknownClientReq, UnknownRet, UnknownUpdate, ErrorBody, VersionRefusal}
    found = component_schemas(sorted(wanted, key=lambda model: model.__name__), SCHEMAS)
    return {name: _draft_07(schema) for name, schema in found.items()}


def _draft_07(value: Any) -> Any:
    """AsyncAPI's own schemas are of draft 07, where a tuple's items stand in `items`."""
    match value:
        case {"prefixItems": items, **rest}:
            return {**_draft_07(rest), "items": _draft_07(items)}
        case dict():
            return {key: _draft_07(inner) for key, inner in value.items()}
        case list():
            return [_draft_07(inner) for inner in value]
        case _:
            return value
