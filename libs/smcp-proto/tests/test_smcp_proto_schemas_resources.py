"""Resources: the envelope and the JSON-RPC messages in it."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from smcp_proto.catalog import CATALOG
from smcp_proto.errors import SmcpCode
from smcp_proto.schemas import (
    CompleteReq,
    Completion,
    ListResourcesReq,
    ListResourcesResult,
    ReadResourceReq,
    Resource,
    ResourceContents,
    ResourceListChangedNotification,
    ResourceRet,
    ResourceTemplate,
    ResourceUpdatedNotification,
    SubscribeResourceReq,
)
from smcp_proto.validation import malformed

READ: dict[str, Any] = {
    "event": "client:resources/read",
    "roomId": "room-123",
    "computerId": "comp-1",
    "serverId": "excel",
    "payload": {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "resources/read",
        "params": {"uri": "file:///project/src/main.rs"},
    },
}


def dumped(model: Any) -> Any:
    return json.loads(model.model_dump_json(exclude_unset=True))


def refused(model: Any, body: object) -> dict[str, Any]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return malformed(caught.value).details


@pytest.mark.rule("computer.resources.payload.event")
def test_the_envelope_of_the_page() -> None:
    assert dumped(ReadResourceReq.model_validate(READ)) == READ


@pytest.mark.rule("computer.resources.payload.params")
@pytest.mark.parametrize(
    ("event", "payload"),
    [
        ("client:resources/list", {"method": "resources/list", "params": {"cursor": "optional-cursor-value"}}),
        ("client:resources/list", {"method": "resources/list", "params": {}}),
        ("client:resources/list", {"method": "resources/list"}),
        ("client:resources/read", {"method": "resources/read", "params": {"uri": "file:///project/src/main.rs"}}),
        ("client:resources/templates/list", {"method": "resources/templates/list"}),
        ("client:resources/subscribe", {"method": "resources/subscribe", "params": {"uri": "file:///a"}}),
        ("client:resources/unsubscribe", {"method": "resources/unsubscribe", "params": {"uri": "file:///a"}}),
    ],
)
@pytest.mark.parametrize("request_id", [1, 0, "call-1", "x" * 256])
def test_the_requests_of_the_page(event: str, payload: dict[str, Any], request_id: int | str) -> None:
    model = CATALOG[event].request
    body = {"roomId": "r", "computerId": "c", "payload": {"jsonrpc": "2.0", "id": request_id, **payload}}
    assert dumped(model.model_validate(body)) == body
    wrong = {**body, "payload": {**body["payload"], "method": "tools/list"}}  # type: ignore[dict-item]
    assert refused(model, wrong)["field"] == "payload.method"


def test_only_lists_may_leave_out_the_computer() -> None:
    body = {"roomId": "r", "payload": {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}}
    assert ListResourcesReq.model_validate(body).computerId is None
    without = {key: value for key, value in READ.items() if key != "computerId"}
    assert refused(ReadResourceReq, without) == {"field": "computerId", "reason": "is missing"}


@pytest.mark.rule("computer.resources.payload.server_null")
def test_a_server_may_be_absent_or_null() -> None:
    assert ReadResourceReq.model_validate({**READ, "serverId": None}).serverId is None


@pytest.mark.rule("computer.resources.payload.jsonrpc")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"jsonrpc": "1.0"}, "payload.jsonrpc"),
        ({"jsonrpc": None}, "payload.jsonrpc"),
        ({"id": None}, "payload.id"),
        ({"id": 1.5}, "payload.id"),
        ({"id": True}, "payload.id"),
        ({"id": "x" * 257}, "payload.id"),
        ({"params": None}, "payload.params"),
        ({"params": {}}, "payload.params.uri"),
        ({"params": {"uri": ""}}, "payload.params.uri"),
        ({"params": {"uri": 1}}, "payload.params.uri"),
        ({"params": {"uri": "a" * 9000}}, "payload.params.uri"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    assert refused(ReadResourceReq, {**READ, "payload": {**READ["payload"], **change}})["field"] == field


@pytest.mark.parametrize("params", [{"uri": "a", "range": [0, 9]}, {"uris": ["a", "b"]}, {"uri": "a", "range": None}])
@pytest.mark.parametrize("model", [ReadResourceReq, SubscribeResourceReq])
def test_reserved_fields_are_answered_not_supported_yet(model: Any, params: dict[str, Any]) -> None:
    method = "resources/read" if model is ReadResourceReq else "resources/subscribe"
    details = refused(model, {**READ, "payload": {**READ["payload"], "method": method, "params": params}})
    assert details["reason"] == "not supported yet"
    assert details["field"] in ("payload.params.range", "payload.params.uris")


@pytest.mark.parametrize(
    "response",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": "a", "result": {"contents": [{"uri": "u", "text": "t"}]}},
        {
            "jsonrpc": "2.0", "id": None,
            "error": {"code": -32002, "message": "no", "data": {"smcp_code": SmcpCode.NOT_FOUND.value}},
        },
    ],
)  # fmt: skip
def test_the_reply_is_the_envelope_with_the_response(response: dict[str, Any]) -> None:
    body = {"roomId": "r", "computerId": "c", "payload": response}
    assert dumped(ResourceRet.model_validate(body)) == body


@pytest.mark.parametrize(
    "rest", [{}, {"result": {}, "error": {"code": 1, "message": ""}}, {"error": {"code": "1", "message": ""}}]
)
def test_a_response_has_either_a_result_or_an_error(rest: dict[str, Any]) -> None:
    refused(ResourceRet, {"roomId": "r", "payload": {"jsonrpc": "2.0", "id": 1, **rest}})


def test_the_notifications_of_the_page() -> None:
    changed = {
        "roomId": "r",
        "computerId": "c",
        "payload": {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"},
    }
    updated = {
        "roomId": "r",
        "computerId": "c",
        "payload": {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": "file:///project/src/main.rs", "title": "Rust Software Application Main File"},
        },
    }
    assert dumped(ResourceListChangedNotification.model_validate(changed)) == changed
    assert dumped(ResourceUpdatedNotification.model_validate(updated)) == updated
    assert refused(ResourceUpdatedNotification, changed)["field"] == "payload.method"


@pytest.mark.rule("computer.resources.models.{aligned,resource.example,contents.example,template.example,page.example}")
def test_the_data_models_of_the_page() -> None:
    item = {
        "uri": "file:///project/src/main.rs",
        "name": "main.rs",
        "title": "Rust Software Application Main File",
        "description": "Primary application entry point",
        "mimeType": "text/x-rust",
    }
    contents = {
        "uri": "file:///project/src/main.rs",
        "name": "main.rs",
        "title": "Rust Software Application Main File",
        "mimeType": "text/x-rust",
        "text": 'fn main() {\n    println("Hello world!");\n}',
    }
    template = {
        "uriTemplate": "file:///{path}",
        "name": "Project Files",
        "title": "\U0001f4c1 Project Files",
        "description": "Access files in the project directory",
        "mimeType": "application/octet-stream",
    }
    page = {"resources": [item], "nextCursor": "opaque-cursor"}
    assert dumped(Resource.model_validate(item)) == item
    assert dumped(ResourceContents.model_validate(contents)) == contents
    assert dumped(ResourceTemplate.model_validate(template)) == template
    assert dumped(ListResourcesResult.model_validate(page)) == page


@pytest.mark.rule("finder.completion.example.{doc_ref,page_index,element_id}")
@pytest.mark.parametrize(
    ("argument", "template"),
    [
        ({"name": "doc_ref", "value": "rpt"}, "dpe://com.example.docs/{doc_ref}/pages/{page_index}"),
        ({"name": "page_index", "value": ""}, "dpe://com.example.docs/{doc_ref}/pages/{page_index}"),
        ({"name": "element_id", "value": "tbl"}, "dpe://com.example.docs/{doc_ref}/elements/{element_id}"),
    ],
)
@pytest.mark.parametrize("context", [None, {"arguments": {"doc_ref": "rpt-2026"}}])
def test_the_completions_of_the_page(argument: dict[str, str], template: str, context: dict[str, Any] | None) -> None:
    params: dict[str, Any] = {"ref": {"type": "ref/resource", "uri": template}, "argument": argument}
    if context:
        params["context"] = context
    payload = {"jsonrpc": "2.0", "id": 1, "method": "completion/complete", "params": params}
    body = {"roomId": "r", "computerId": "c", "payload": payload}
    assert dumped(CompleteReq.model_validate(body)) == body


@pytest.mark.rule("finder.completion.fields")
def test_a_completion_of_the_page() -> None:
    completion = {"values": ["rpt-2026", "rpt-2025"], "total": 2, "hasMore": False}
    assert dumped(Completion.model_validate(completion)) == completion


@pytest.mark.rule("computer.resources.errors.codes")
def test_the_codes_of_the_page() -> None:
    assert {code.value for code in SmcpCode} == {
        "SMCP_RESOURCE_NOT_SUPPORTED",
        "SMCP_RESOURCE_NOT_FOUND",
        "SMCP_SUBSCRIPTION_NOT_SUPPORTED",
        "SMCP_RATE_LIMITED",
    }
