"""Arguments are checked against the schema of their tool."""

from typing import Any

import pytest

from smcp_computer.tools import check_arguments, compiled
from smcp_proto.errors import Malformed

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 0},
        "how": {"enum": ["a", "b"]},
        "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
    },
    "required": ["text"],
    "additionalProperties": False,
}


@pytest.mark.rule("answers.tools.arguments")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, 'params: "text" is a required property'),
        ({"text": 1}, 'params.text: the value is not of type "string"'),
        ({"text": "", "count": -1}, "params.count: the value is less than the minimum of 0"),
        ({"text": "", "how": "c"}, 'params.how: the value is not one of "a" or "b"'),
        ({"text": "", "list": [{"n": 1}, {"n": "s3cret"}]}, 'params.list.1.n: the value is not of type "number"'),
        ({"text": "", "txt": ""}, "params: Additional properties are not allowed ('txt' was unexpected)"),
    ],
)
def test_a_wrong_argument_is_named_with_its_path_and_without_its_value(params: dict[str, Any], message: str) -> None:
    with pytest.raises(Malformed) as raised:
        check_arguments(compiled(SCHEMA), params)
    assert raised.value.message == message
    assert raised.value.details == {"field": message.partition(":")[0]}


@pytest.mark.parametrize(
    "params",
    [
        {"text": "x"},
        {"text": "x", "count": 2**80, "how": "b"},
        {"text": "\ud800"},
        {"text": "x", "list": [{"n": 1e300}]},
    ],
)
def test_arguments_that_the_schema_takes_are_not_refused(params: dict[str, Any]) -> None:
    check_arguments(compiled(SCHEMA), params)


def test_a_name_that_is_no_text_is_left_to_the_server() -> None:
    check_arguments(compiled({"additionalProperties": False}), {"\ud800": 1})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/hostname"},
        {"$schema": "http://127.0.0.1:9/draft"},
        {"properties": {"text": {"pattern": "("}}},
    ],
)
def test_a_schema_that_cannot_be_used_or_is_elsewhere_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        compiled(schema)
