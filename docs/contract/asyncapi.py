"""The AsyncAPI 3.0 document, from the catalog: Socket.IO's one namespace, and every subject on NATS."""

import json
from typing import Any

import yaml

from docs.contract import messages, words
from docs.contract.channels import BUS_CHANNELS, SOCKET_CHANNEL, inbox, socket_channel
from docs.contract.operations import operations
from docs.contract.schemas import Document
from smcp_proto.catalog import CATALOG, SERVER_VERSION


def asyncapi() -> Document:
    """The whole document."""
    rows = [*CATALOG.values(), *messages.INTERNAL]
    spoken = messages.messages(rows)
    channels = {SOCKET_CHANNEL: socket_channel(messages.socket_messages())}
    for row in rows:
        if row.event in messages.NOT_ON_BUS:
            continue
        key = messages.key_of(row)
        channels[f"nats.{key}"] = BUS_CHANNELS[messages.prefix_of(row)](row.verb, key)
    channels["nats.inbox"] = inbox([*(key for key in spoken if key.endswith(".reply")), messages.ERROR])
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "A2C-SMCP",
            "version": SERVER_VERSION,
            "description": words.OVERVIEW + "\n" + _error_table(),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "gateway": {
                "host": "127.0.0.1:8000",
                "pathname": "/socket.io/",
                "protocol": "ws",
                "description": "A gateway: Socket.IO (engine.io 4) over polling and WebSocket.",
                "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in words.SECURITY],
            },
            "nats": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "Between the processes of the system.",
            },
        },
        "channels": channels,
        "operations": operations(),
        "components": {"messages": spoken, "schemas": messages.schemas(rows), "securitySchemes": words.SECURITY},
    }


def written(document: Document) -> str:
    """The document as it stands in its file."""
    plain = json.loads(json.dumps(document))
    text: str = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return f"# Written by `python -m docs.contract`; do not edit.\n{text}"


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _error_table() -> str:
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in words.ERRORS.items()]
    return "\n".join(["| code | a flat error says |", "|---|---|", *rows]) + "\n"
