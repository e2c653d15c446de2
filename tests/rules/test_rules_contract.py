"""The documents of the contract: current, valid, complete, and of one mind with the models."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from docs.contract import words
from docs.contract.__main__ import DOCS, documents, stale
from docs.contract.messages import INTERNAL, NOT_ON_BUS, examples, key_of, native_updates, prefix_of
from docs.contract.operations import SMALL_BYTES
from docs.contract.schemas import all_schemas, models, unions
from smcp_bus import headers, subjects
from smcp_bus.exact_json import SMALL_BYTES as ENFORCED_BYTES
from smcp_proto.catalog import CATALOG, Ack, Row
from smcp_proto.errors import ErrorCode
from smcp_proto.member_names import encode_name

VALIDATORS = {**{name: TypeAdapter(model) for name, model in models().items()}, **unions()}
schemas = cache(all_schemas)  # at the first test, and not in each process that only collects
ROWS = list(CATALOG.values())
ON_BUS = [row for row in ROWS if row.event not in NOT_ON_BUS]

# What may stand anywhere: a value of each type of JSON, and the edges that the pages name.
ODD: list[Any] = [
    None, True, 0, 1, -1, 3600, 3601, 101, 1.5, "", "x", "x" * 129, "a\nb", "PT5S", "computer", "2.0", [], ["x"], [1],
    {}, {"x": "y"}, {"x": 1},
]  # fmt: skip
BEYOND_JSON_SCHEMA = {"ResourceRet.payload", "JsonRpcResponse.result", "JsonRpcResponse.error"}
"""That a response has either a result or an error is said in words."""
DURATIONS = {"timeout", "sse_read_timeout"}
"""Of Streamable HTTP: JSON Schema knows no ISO 8601 durations."""

BODIES: dict[str, dict[str, Any]] = {
    "MCPServerStdioParameters": {"command": "uvx", "args": ["x"], "env": {"A": "b"}, "cwd": "/", "encoding": "utf-8"},
    "MCPServerStreamableHttpParameters": {"url": "u", "timeout": "PT1S", "terminate_on_close": False},
    "MCPSSEParameters": {"url": "u", "headers": {"A": "b"}, "timeout": 1.5, "sse_read_timeout": 3},
    "MCPServerStdioConfig": {"name": "n", "type": "stdio", "server_parameters": {"command": "c"}},
    "MCPServerPromptStringInput": {"id": "i", "description": "", "type": "promptString", "password": True},
    "MCPServerPickStringInput": {"id": "i", "description": "", "type": "pickString", "options": ["a"], "default": "a"},
    "MCPServerCommandInput": {"id": "i", "description": "", "type": "command", "command": "c", "args": {"a": "b"}},
    "ToolMeta": {"auto_apply": True, "alias": "a", "tags": ["t"], "ret_object_mapper": {"a": "b"}},
    "SMCPTool": {"name": "n", "description": "", "params_schema": {}, "return_schema": None, "meta": {"k": ["v"]}},
    "SessionInfo": {"sid": "s", "name": "n", "role": "agent", "office_id": "o", "a2c_version": "0.4.0"},
    "DPEDocumentSummary": {"doc_ref": "d", "uri": "dpe://h/d", "page_count": 1, "keywords": ["k"]},
}  # fmt: skip
"""Structures that belong to no event."""


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from BODIES.items()
    for event, example in examples().items():
        row = CATALOG[event]
        yield row.request.__name__, example["request"]
        if row.reply is not None:
            yield row.reply.__name__, example["reply"]


def accepts(name: str, body: object) -> bool:
    try:
        VALIDATORS[name].validate_python(body)
    except ValidationError:
        return False
    return True


def is_valid(name: str, body: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schemas()[name]).is_valid(body))


@pytest.mark.rule("answers.contract.current")
def test_generated_documents_are_current() -> None:
    assert [str(path.relative_to(DOCS)) for path in stale(documents())] == [], "run python -m docs.contract"


@pytest.mark.parametrize("name", sorted(VALIDATORS))
def test_every_schema_is_valid_and_self_contained(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schemas()[name])
    assert all(reference.startswith("#/$defs/") for reference in references(schemas()[name]))
    assert schemas()[name]["title"] == name


def test_every_structure_of_the_catalog_has_a_schema() -> None:
    wanted = {model.__name__ for row in ROWS for model in (row.request, row.reply) if model is not None}
    assert wanted | {"ErrorBody", "VersionRefusal", "MCPServerConfig", "MCPServerInput"} <= schemas().keys()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.event)
def test_every_event_has_an_example_that_matches_its_model_and_schema(row: Row) -> None:
    example = examples()[row.event]
    assert accepts(row.request.__name__, example["request"])
    assert is_valid(row.request.__name__, example["request"])
    assert ("reply" in example) == (row.ack is not Ack.NONE)
    if row.reply is not None:
        assert accepts(row.reply.__name__, example["reply"])
        assert is_valid(row.reply.__name__, example["reply"])


@pytest.mark.rule("answers.contract.current")
@pytest.mark.parametrize(("name", "body"), list(bodies()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_schema_and_its_model_accept_the_same_values(name: str, body: dict[str, Any]) -> None:
    assert accepts(name, body)
    assert is_valid(name, body)
    fields = {*body, *models()[name].model_fields}
    for field in sorted(fields):
        left_out = {key: value for key, value in body.items() if key != field}
        assert accepts(name, left_out) == is_valid(name, left_out), f"without {field}"
        for odd in ODD:
            if f"{name}.{field}" in BEYOND_JSON_SCHEMA or (field in DURATIONS and isinstance(odd, str)):
                continue
            changed = {**body, field: odd}
            assert accepts(name, changed) == is_valid(name, changed), f"{field}={odd!r:.40}"


# -- the AsyncAPI document


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    """As it stands in the file."""
    read: dict[str, Any] = yaml.safe_load((DOCS / "asyncapi.yaml").read_text(encoding="utf-8"))
    return read


def references(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for inner in value.values():
                yield from references(inner)
        case list():
            for inner in value:
                yield from references(inner)


def resolve(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_every_reference_resolves(published: dict[str, Any]) -> None:
    for reference in set(references(published)):
        assert reference.startswith("#/")
        assert resolve(published, reference) is not None


def test_every_payload_is_a_valid_schema(published: dict[str, Any]) -> None:
    whole = {"components": published["components"]}
    for name, message in published["components"]["messages"].items():
        schema = {**whole, **message["payload"]}
        jsonschema.Draft7Validator.check_schema(schema)
        for example in message.get("examples", []):
            assert jsonschema.Draft7Validator(schema).is_valid(example["payload"]), name


def test_an_operation_uses_only_messages_of_its_channel(published: dict[str, Any]) -> None:
    for name, operation in published["operations"].items():
        assert operation["action"] in ("send", "receive")
        for part in (operation, operation.get("reply")):
            if part is not None:
                channel = part["channel"]["$ref"]
                assert part["messages"], name
                assert all(each["$ref"].startswith(f"{channel}/messages/") for each in part["messages"]), name


def test_every_channel_declares_the_parameters_of_its_address(published: dict[str, Any]) -> None:
    for name, channel in published["channels"].items():
        assert set(re.findall(r"\{(\w+)\}", channel["address"] or "")) == set(channel.get("parameters", {})), name


@pytest.mark.rule(
    "events.list.{client:tool_call.sender,client:get_config.sender,client:get_tools.sender}",
    "events.list.{client:get_desktop.sender,client:get_finder.sender}",
)
@pytest.mark.parametrize("row", [row for row in ROWS if row not in native_updates()], ids=lambda row: row.event)
def test_every_event_is_documented_with_its_senders_and_acknowledgement(row: Row, published: dict[str, Any]) -> None:
    operation = published["operations"][f"gateway.{key_of(row)}"]
    message = resolve(published, resolve(published, operation["messages"][0]["$ref"])["$ref"])
    assert message["name"] == row.event
    assert message["payload"] == {"$ref": f"#/components/schemas/{row.request.__name__}"}
    assert operation["x-senders"] == sorted(row.senders)
    assert operation["action"] == ("send" if row.ack is Ack.NONE else "receive")
    replies = [each["$ref"].rpartition("/")[2] for each in operation.get("reply", {}).get("messages", [])]
    assert (
        replies
        == {
            Ack.REPLY: [f"{key_of(row)}.reply", "error"],
            Ack.DONE: ["done.pair"],
            Ack.NOTHING: ["done.null", "error"],
            Ack.NONE: [],
        }[row.ack]
    )
    if row.reply is not None:
        reply = published["components"]["messages"][f"{key_of(row)}.reply"]
        assert reply["payload"] == {"$ref": f"#/components/schemas/{row.reply.__name__}"}
    assert ("gateway.relayed." + key_of(row) in published["operations"]) == row.event.startswith("client:")
    assert operation.get("x-notifies") == row.notifies


@pytest.mark.rule("answers.nats.subjects")
@pytest.mark.parametrize("row", [*ON_BUS, *INTERNAL], ids=lambda row: row.event)
def test_every_subject_is_documented_as_built(row: Row, published: dict[str, Any]) -> None:
    operation = published["operations"][f"bus.{key_of(row)}"]
    address = resolve(published, operation["channel"]["$ref"])["address"]
    values = {
        "office": "办公室",
        "computer": "a.b",
        "name": "*",
        "role": "agent",
        "credential": "host 1",
        "process": "ab",
    }
    built = {
        "client": subjects.client("办公室", "a.b", row.verb),
        "server": subjects.server("办公室", "agent", "*", row.verb),
        "notify": subjects.notify("办公室", row.verb),
        "hosts": subjects.hosts("host 1", "ab", row.verb),
        "operators": subjects.operators("host 1", row.verb),
    }[prefix_of(row)]
    assert address.format(**{name: encode_name(value) for name, value in values.items()}) == built
    assert operation.get("bindings", {}).get("nats", {}).get("queue", "") == subjects.destination(built)[1]


@pytest.mark.rule("answers.large.small-events")
def test_every_error_and_every_header_is_explained(published: dict[str, Any]) -> None:
    assert set(words.ERRORS) == set(ErrorCode)
    constants = {value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str)}
    assert set(words.HEADERS) == constants
    assert all(f"| {int(code)} | " in published["info"]["description"] for code in ErrorCode)
    assert all(
        set(operation["x-errors"]) <= {int(code) for code in ErrorCode}
        for operation in published["operations"].values()
        if "x-errors" in operation
    )
    assert SMALL_BYTES == ENFORCED_BYTES
