"""The document's operations. A key says between whom: `gateway.` clients and gateway, `bus.` the processes on NATS."""

from collections.abc import Iterable
from typing import Final

from docs.contract import words
from docs.contract.channels import NAMESPACE, SOCKET_CHANNEL
from docs.contract.messages import (
    BUS_REPLIES,
    ERROR,
    INTERNAL,
    NOT_ON_BUS,
    NULL,
    PAIR,
    key_of,
    native_updates,
    prefix_of,
)
from docs.contract.schemas import Document
from smcp_bus import registry_contract
from smcp_bus.subjects import OWNER_QUEUE, REGISTRY_QUEUE
from smcp_proto.catalog import CATALOG, MEMBER, Ack, Row

SMALL_BYTES: Final = 64 * 1024
"""Of a request at the gateway."""
BODY_BYTES: Final = 8 * 1024 * 1024
"""Of a large one, unless a setting says otherwise."""
TO_OFFICE: Final = "Sent to all members of the office except the one that caused it."
TO_AGENT: Final = "Sent to the office's Agent."
TO_CALLER: Final = "Sent to the Agent that waits for the call, if its request has `a2c_progress: true`."
SAID: Final = "A Computer on Socket.IO says it itself; it is passed on to the office's Agent."


def operations() -> Document:
    found: Document = {}
    native = native_updates()
    for row in CATALOG.values():
        name = key_of(row)
        if row not in native:
            if row.ack is Ack.NONE:
                to_agent = TO_CALLER if row.event in NOT_ON_BUS else TO_AGENT
                summary = TO_OFFICE if row.receivers == MEMBER else to_agent
                found[f"gateway.{name}"] = _operation("send", SOCKET_CHANNEL, [name], row, summary)
                if row.senders:
                    found[f"gateway.said.{name}"] = _said(row)
            else:
                found[f"gateway.{name}"] = _acknowledged(row)
        if prefix_of(row) == "client":
            found[f"gateway.relayed.{name}"] = _relayed(row)
        if row.event not in NOT_ON_BUS:
            found[f"bus.{name}"] = _on_bus(row)
    for row in INTERNAL:
        found[f"bus.{key_of(row)}"] = _on_bus(row)
    return found | _unknown_operations()


def _operation(action: str, channel: str, messages: Iterable[str], row: Row, summary: str) -> Document:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "messages": [_of_channel(channel, message) for message in messages],
        "x-senders": sorted(row.senders),
        "x-ack": words.ACKS[row.ack],
        "x-page": row.source,
    }


def _acknowledged(row: Row) -> Document:
    """An event of a client, with its acknowledgement."""
    replies = {Ack.REPLY: [f"{key_of(row)}.reply", ERROR], Ack.DONE: [PAIR], Ack.NOTHING: [NULL, ERROR]}[row.ack]
    operation = _operation("receive", SOCKET_CHANNEL, [key_of(row)], row, _asked(row))
    operation["reply"] = _reply(SOCKET_CHANNEL, replies)
    operation |= _limits(row)
    if row.notifies:
        operation["x-notifies"] = row.notifies
    return operation


def _said(row: Row) -> Document:
    """A notification that a client may say: acknowledged as an update is."""
    operation = _operation("receive", SOCKET_CHANNEL, [key_of(row)], row, SAID)
    operation["x-ack"] = words.ACKS[Ack.NOTHING]
    operation["reply"] = _reply(SOCKET_CHANNEL, [NULL, ERROR])
    return operation | _limits(row)


def _relayed(row: Row) -> Document:
    operation = _operation(
        "send", SOCKET_CHANNEL, [key_of(row)], row, "Relayed to a Computer on Socket.IO, which acknowledges it."
    )
    operation["reply"] = _reply(SOCKET_CHANNEL, [f"{key_of(row)}.reply", ERROR])
    return operation


def _on_bus(row: Row) -> Document:
    name, channel = key_of(row), f"nats.{key_of(row)}"
    if row.ack is Ack.NONE:
        return _operation("receive", channel, [name], row, "The registry tells an office; gateways tell its members.")
    summary = {
        "client": "Asked of who owns the Computer's subject.",
        "server": "Asked of a registry, by the member that the subject names.",
        "hosts": "A process's lease and members, asked of a registry; `alive` is asked of the process.",
        "operators": "Asked of a registry by an operator, who is a member of no office.",
    }[prefix_of(row)]
    action = "receive" if row is registry_contract.ALIVE else "send"
    operation = _operation(action, channel, [name], row, summary)
    reply = [f"{name}.reply"] if row.reply or row.event in BUS_REPLIES else []
    operation["reply"] = _reply("nats.inbox", [*reply, ERROR])
    queue = OWNER_QUEUE if prefix_of(row) == "client" else REGISTRY_QUEUE
    if row is not registry_contract.ALIVE:
        operation["bindings"] = {"nats": {"queue": queue}}
    return operation | _limits(row)


def _unknown_operations() -> Document:
    client: Document = {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{SOCKET_CHANNEL}"},
        "summary": "Any other `client:` event whose verb is `[a-z][a-z0-9_]{0,63}`.",
        "messages": [_of_channel(SOCKET_CHANNEL, "client.unknown")],
        "reply": _reply(SOCKET_CHANNEL, ["client.unknown.reply", ERROR]),
        "x-senders": ["agent"],
    }
    update: Document = {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{SOCKET_CHANNEL}"},
        "summary": "Any other `server:update_` event; it becomes the notification of the same name.",
        "messages": [_of_channel(SOCKET_CHANNEL, "server.update_unknown")],
        "reply": _reply(SOCKET_CHANNEL, [NULL, ERROR]),
        "x-senders": ["computer"],
    }
    notification: Document = {
        "action": "send",
        "channel": {"$ref": f"#/channels/{SOCKET_CHANNEL}"},
        "messages": [_of_channel(SOCKET_CHANNEL, "notify.update_unknown")],
    }
    return {
        "gateway.client.unknown": client,
        "gateway.server.update_unknown": update,
        "gateway.notify.unknown": notification,
    }


def _limits(row: Row) -> Document:
    errors = [*words.COMMON_ERRORS, *(words.CLIENT_ERRORS if prefix_of(row) == "client" else ())]
    seconds: object = "the request's own `timeout`" if row.seconds is None else row.seconds
    limits: Document = {"x-seconds": seconds, "x-max-request-bytes": BODY_BYTES if row.is_large else SMALL_BYTES}
    if row.is_large:
        limits["x-max-request-bytes-description"] = "default; SMCP_MAX_PAYLOAD / 4, at least 1 MiB"
    limits["x-errors"] = sorted(int(code) for code in errors)
    return limits | ({"x-rate-limited": words.METERED} if row.metered else {})


def _reply(channel: str, messages: Iterable[str]) -> Document:
    return {
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [_of_channel(channel, message) for message in messages],
    }


def _of_channel(channel: str, message: str) -> Document:
    return {"$ref": f"#/channels/{channel}/messages/{message}"}


def _asked(row: Row) -> str:
    if prefix_of(row) == "client":
        return f"An Agent asks the Computer that it names ({NAMESPACE})."
    who = " or ".join({"agent": "an Agent", "computer": "a Computer"}[role] for role in sorted(row.senders))
    return f"{who[0].upper()}{who[1:]} tells or asks the server."
