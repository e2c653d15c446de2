"""The document's channels: Socket.IO's namespace, and the subjects of NATS with their parameters."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from docs.contract.schemas import Document
from smcp_bus.subjects import HOSTS, OPERATORS, ROOT
from smcp_proto.catalog import MAX_SUPPORTED, MIN_SUPPORTED

NAMESPACE: Final = "/smcp"
SOCKET_CHANNEL: Final = "smcp"

_ENCODED: Final = "one token: letters, digits, `_` and `-` stay, every other byte of UTF-8 becomes `=XX`"
_PARAMETERS: Final[Mapping[str, Document]] = {
    "office": {"description": f"The office's name, encoded: {_ENCODED}."},
    "computer": {"description": "The Computer's name, encoded."},
    "role": {"enum": ["agent", "computer"], "description": "The role of the member that asks."},
    "name": {"description": "The name of the member that asks, encoded. NATS permissions bind it to the sender."},
    "credential": {"description": "The credential under which the process connected, encoded."},
    "process": {"description": "One run of a process: 32 hex digits."},
}


def socket_channel(messages: Iterable[str]) -> Document:
    """The one namespace of Socket.IO; events are its messages."""
    version = f"MAJOR.MINOR.PATCH, {MIN_SUPPORTED} to {MAX_SUPPORTED}; absent: the protocol without a version"
    return {
        "address": NAMESPACE,
        "description": (
            "Socket.IO's namespace. Where the gateway requires authentication, a client sends its token as `token` in "
            "its `auth` object, or in the header Authorization. Other fields of `auth` are optional. `max_message` is "
            "the largest message in bytes that the client accepts (default: 4 MiB), `max_values` the number of JSON "
            "values that an answer to it may have (default: the gateway's limit). `flat_errors: true` says that it "
            "reads a flat error in place of a tool's result, and the details of a refused join or leave. Any other "
            "client gets no such details, and for a failed call a `CallToolResult` with `isError` and "
            "`meta.a2c_error`, except for the codes that the published Agent reads (404, 4006-4008, 4014-4019). If a "
            "Computer sends a `caller_key`, each request and cancel to it has `a2c_caller`, `{key, subject, rights}`, "
            "which says who calls; `key` is that `caller_key`. If the request is traced, it also has `traceparent`."
        ),
        "servers": [{"$ref": "#/servers/gateway"}],
        "messages": _messages(messages),
        "bindings": {
            "ws": {
                "method": "GET",
                "query": {"type": "object", "properties": {"a2c_version": {"type": "string", "description": version}}},
            }
        },
        "x-auth": {
            "type": "object",
            "properties": {
                "max_message": {"type": "integer", "minimum": 1, "default": 4 * 1024 * 1024},
                "max_values": {"type": "integer", "minimum": 1},
                "flat_errors": {"type": "boolean", "default": False},
                "caller_key": {"type": "string"},
                "token": {"type": "string", "minLength": 1, "maxLength": 8192},
            },
        },
        "x-refusal": {
            "status": 400,
            "header": "X-A2C-Error-Code",
            "body": {"$ref": "#/components/schemas/VersionRefusal"},
        },
    }


def inbox(messages: Iterable[str]) -> Document:
    """Where replies go: an address that the request says."""
    return {
        "address": None,
        "description": "The inbox of who asked. Success: the reply's JSON, or an empty body; else the flat error.",
        "servers": [{"$ref": "#/servers/nats"}],
        "messages": _messages(messages),
    }


def _client(verb: str, message: str) -> Document:
    return _subject(f"{ROOT}.{{office}}.client.{{computer}}.{verb}", message, "office", "computer")


def _server(verb: str, message: str) -> Document:
    return _subject(f"{ROOT}.{{office}}.server.{{role}}.{{name}}.{verb}", message, "office", "role", "name")


def _notify(verb: str, message: str) -> Document:
    return _subject(f"{ROOT}.{{office}}.notify.{verb}", message, "office")


def _hosts(verb: str, message: str) -> Document:
    return _subject(f"{HOSTS}.{{credential}}.{{process}}.{verb}", message, "credential", "process")


def _operators(verb: str, message: str) -> Document:
    return _subject(f"{OPERATORS}.{{credential}}.{verb}", message, "credential")


BUS_CHANNELS: Final[Mapping[str, Callable[[str, str], Document]]] = {
    "client": _client,
    "server": _server,
    "notify": _notify,
    "hosts": _hosts,
    "operators": _operators,
}
"""By an event's prefix: from its verb and its message to its channel."""


def _subject(address: str, message: str, *parameters: str) -> Document:
    return {
        "address": address,
        "servers": [{"$ref": "#/servers/nats"}],
        "parameters": {name: _PARAMETERS[name] for name in parameters},
        "messages": _messages([message]),
    }


def _messages(keys: Iterable[str]) -> Document:
    return {key: {"$ref": f"#/components/messages/{key}"} for key in keys}
