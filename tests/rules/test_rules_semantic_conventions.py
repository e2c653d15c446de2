"""Names and attributes of our spans, as the golden trees have them, against OpenTelemetry's semantic conventions.

The lists are written by hand from the sources that they name. A name that is in none of them begins with `smcp.`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "e2e" / "traces" / "golden"
Span = dict[str, Any]

GENERAL = {"error.type"}
"""open-telemetry/semantic-conventions, docs/general/recording-errors.md."""

MESSAGING_REQUIRED = {"messaging.system", "messaging.operation.name"}
MESSAGING_WHERE_KNOWN = {"messaging.operation.type", "messaging.destination.name", "messaging.destination.template"}
"""Of spans of one message: open-telemetry/semantic-conventions, model/messaging/spans.yaml, messaging.send.producer and
messaging.process.consumer."""
MESSAGING_MORE = {"messaging.consumer.group.name"}
"""The same repository, model/messaging/registry.yaml."""
OPERATION_TYPES = {"PRODUCER": "send", "CONSUMER": "process"}
"""Kinds of spans, and `messaging.operation.type`, by the notes of those spans."""

MCP_REQUIRED = {"mcp.method.name"}
MCP_OF_A_REQUEST = {"jsonrpc.request.id"}
MCP_OF_A_TOOL_CALL = {"gen_ai.tool.name", "gen_ai.operation.name"}
MCP_OF_A_PROMPT = {"gen_ai.prompt.name"}
MCP_OF_A_RESOURCE = {"mcp.resource.uri"}
MCP_MORE = {
    "mcp.protocol.version",
    "mcp.session.id",
    "network.transport",
    "network.protocol.name",
    "network.protocol.version",
    "server.address",
    "server.port",
    "rpc.response.status_code",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
}
"""open-telemetry/semantic-conventions-genai, model/mcp/spans.yaml, mcp.client and mcp.server, with their groups in
model/mcp/common.yaml."""
TRANSPORTS = {"pipe", "tcp", "quic"}
"""docs/gen-ai/mcp.md of that repository, Recording MCP transport."""

KNOWN = (
    GENERAL
    | MESSAGING_REQUIRED
    | MESSAGING_WHERE_KNOWN
    | MESSAGING_MORE
    | MCP_REQUIRED
    | MCP_OF_A_REQUEST
    | MCP_OF_A_TOOL_CALL
    | MCP_OF_A_PROMPT
    | MCP_OF_A_RESOURCE
    | MCP_MORE
)


def below(span: Span) -> Iterator[Span]:
    yield span
    for child in span["children"]:
        yield from below(child)


def all_spans() -> list[tuple[str, Span]]:
    """With the file of each. The spans of the test's application are not ours."""
    return [
        (path.stem, span)
        for path in sorted(GOLDEN.glob("*.json"))
        for root in json.loads(path.read_text())
        for span in below(root)
        if not span["from"].startswith("an-app")
    ]


SPANS = all_spans()


def of_kind(*kinds: str) -> list[tuple[str, Span]]:
    return [(file, span) for file, span in SPANS if span["span"].split()[0] in kinds]


def test_every_attribute_is_in_a_convention_or_is_marked_as_ours() -> None:
    names = {name for _, span in SPANS for name in span["attributes"]}
    assert {name for name in names - KNOWN if not name.startswith("smcp.")} == set()
    assert {"messaging.system", "mcp.method.name", "smcp.req_id"} <= names


def test_every_event_is_marked_as_ours() -> None:
    assert {event for _, span in SPANS for event in span["events"] if not event.startswith("smcp.")} == set()


@pytest.mark.parametrize("kind", ["PRODUCER", "CONSUMER"])
def test_spans_of_messages_have_what_messaging_asks_for(kind: str) -> None:
    found = of_kind(kind)
    assert found
    for file, span in found:
        attributes = span["attributes"]
        assert set(attributes) >= MESSAGING_REQUIRED | MESSAGING_WHERE_KNOWN, file
        assert attributes["messaging.operation.type"] == OPERATION_TYPES[kind], file
        operation, template = attributes["messaging.operation.name"], attributes["messaging.destination.template"]
        assert span["span"] == f"{kind} {operation} {template}", file


def test_spans_of_mcp_requests_have_what_mcp_asks_for() -> None:
    of_methods = {
        "tools/call": MCP_OF_A_TOOL_CALL,
        "prompts/get": MCP_OF_A_PROMPT,
        "resources/read": MCP_OF_A_RESOURCE,
    }
    found = [(file, span) for file, span in of_kind("CLIENT") if "smcp.mcp_server" in span["attributes"]]
    methods = {span["attributes"]["mcp.method.name"] for _, span in found}
    assert methods >= {*of_methods, "prompts/list", "resources/templates/list", "completion/complete"}
    for file, span in found:
        attributes = span["attributes"]
        method = attributes["mcp.method.name"]
        of_its_method = of_methods.get(method, set())
        assert set(attributes) >= MCP_REQUIRED | MCP_OF_A_REQUEST | of_its_method, file
        assert not (MCP_OF_A_TOOL_CALL | MCP_OF_A_PROMPT | MCP_OF_A_RESOURCE) - of_its_method & set(attributes), file
        assert attributes.get("gen_ai.operation.name", "execute_tool") == "execute_tool", file
        assert attributes["network.transport"] in TRANSPORTS, file
        target = attributes.get("gen_ai.tool.name") or attributes.get("gen_ai.prompt.name")
        assert span["span"] == " ".join(filter(None, ["CLIENT", method, target])), file


def test_a_span_has_an_error_type_if_and_only_if_it_failed() -> None:
    for file, span in SPANS:
        assert ("error.type" in span["attributes"]) is span["status"].startswith("ERROR"), file
