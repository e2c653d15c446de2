"""Errors: the flat 400 made from pydantic's errors, unions by their `type`, and the texts of refusals."""

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Tag, TypeAdapter, ValidationError

from smcp_proto.catalog import CATALOG
from smcp_proto.errors import ERRORS, ErrorBody, ErrorCode, Malformed, NotAllowed, SmcpError, read_refusal, refusal
from smcp_proto.schemas import GetToolsRet, ListResourcesReq, ToolCallReq
from smcp_proto.schemas.base import Wire
from smcp_proto.validation import MAX_TEXT, by_type, malformed
from smcp_testing.profiles import scaled

CALL: dict[str, Any] = {
    "agent": "a", "req_id": "r", "computer": "c", "tool_name": "t", "params": {}, "timeout": 3,
}  # fmt: skip
SECRET = "hunter2-" * 50

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def refusal_of(model: Any, body: object) -> Malformed:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return malformed(caught.value)


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"timeout": "3"}, "timeout", "must be a whole number"),
        ({"timeout": 0}, "timeout", "must be greater than or equal to 1"),
        ({"timeout": 3601}, "timeout", "must be less than or equal to 3600"),
        ({"computer": ""}, "computer", "a name has 1 to 128 characters, this one has 0"),
        ({"computer": "x" * 10_000}, "computer", "a name has 1 to 128 characters, this one has 10000"),
        ({"agent": "a\x00"}, "agent", "holds a control character, or a lone surrogate"),
        ({"req_id": "a\n"}, "req_id", "holds a control character"),
        ({"params": []}, "params", "must be an object"),
        (
            {"a2c_on_behalf": {"identity": "otto", "subject": "otto"}},
            "a2c_on_behalf.identity",
            "must match pattern '^[0-9a-f]{32}$'",
        ),
    ],
)
def test_the_field_and_the_reason_are_named(change: dict[str, Any], field: str, reason: str) -> None:
    error = refusal_of(ToolCallReq, CALL | change)
    assert error.body().model_dump() == {
        "code": 400,
        "message": f"{field}: {reason}",
        "details": {"field": field, "reason": reason},
    }


@pytest.mark.parametrize(
    ("request_id", "reason"),
    [(None, "neither a string nor an integer"), (True, "neither a string nor an integer"),
     ("x" * 257, "longer than 256 characters")],
)  # fmt: skip
def test_an_invalid_json_rpc_id_is_named(request_id: object, reason: str) -> None:
    payload = {"jsonrpc": "2.0", "id": request_id, "method": "resources/list"}
    error = refusal_of(ListResourcesReq, {"roomId": "r", "computerId": "c", "payload": payload})
    assert error.details == {"field": "payload.id", "reason": reason}


@pytest.mark.parametrize("value", [{}, {"a": 1}, ["a", 1], [["a"]]])
def test_an_invalid_value_in_tool_meta_is_named(value: object) -> None:
    tool = {"name": "t", "description": "", "params_schema": {}, "meta": {"k": value}}
    error = refusal_of(GetToolsRet, {"tools": [tool], "req_id": "r"})
    assert error.details["reason"] == "neither a scalar nor a list of strings"


@pytest.mark.rule("answers.errors.400")
@pytest.mark.parametrize("field", CALL)
def test_a_missing_field_is_named(field: str) -> None:
    body = {key: value for key, value in CALL.items() if key != field}
    assert refusal_of(ToolCallReq, body).details == {"field": field, "reason": "is missing"}


def test_a_field_inside_a_list_is_named_with_its_index() -> None:
    tool = {"name": "t", "description": "", "params_schema": {}, "meta": {"k": {}}}
    assert refusal_of(GetToolsRet, {"tools": [tool], "req_id": "r"}).details["field"] == "tools.0.meta.k"


def test_an_error_about_the_whole_body_names_no_field() -> None:
    error = refusal_of(ToolCallReq, [])
    assert error.details["field"] == ""
    assert error.message == error.details["reason"]


@pytest.mark.rule("answers.errors.no-echo")
@pytest.mark.parametrize(
    "change",
    [
        {"agent": [SECRET]},
        {"agent": SECRET},
        {"req_id": SECRET},
        {"computer": {SECRET: SECRET}},
        {"tool_name": SECRET * 2},
        {"params": SECRET},
        {"params": [SECRET]},
        {"timeout": SECRET},
    ],
)
def test_an_error_does_not_repeat_the_input(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ToolCallReq.model_validate(CALL | change)
    assert "hunter2" not in malformed(caught.value).body().model_dump_json()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("row", CATALOG.values(), ids=lambda row: row.event)
@settings(max_examples=scaled(ci=25, soak=1000))  # for each of some forty events
@given(body=st.dictionaries(st.text(max_size=10), json_values, max_size=5) | json_values)
def test_any_body_is_accepted_or_refused_in_few_words(row: Any, body: object) -> None:
    try:
        row.request.model_validate(body)
    except ValidationError as error:
        refused = malformed(error)
        assert len(refused.details["field"]) <= MAX_TEXT
        assert 0 < len(refused.details["reason"]) <= MAX_TEXT


@pytest.mark.rule("answers.errors.flat")
def test_every_code_has_its_error_and_every_error_says_its_own() -> None:
    assert set(ERRORS) == {int(code) for code in ErrorCode}
    for code, kind in ERRORS.items():
        error = kind("why", details={"a": 1})
        assert isinstance(error, SmcpError)
        assert error.body().model_dump() == {"code": code, "message": "why", "details": {"a": 1}}
        assert str(error) == "why"  # in a log, too
    assert Malformed("why").body().model_dump() == {"code": 400, "message": "why", "details": {}}


@pytest.mark.rule("answers.errors.codes")
def test_the_codes_of_the_wire() -> None:
    assert sorted(ERRORS) == [400, 401, 403, 404, 408, 413, 429, 500, 503, 4008, 4103]


@given(st.sampled_from(sorted(ERRORS)), st.text(max_size=40))
def test_the_code_and_message_of_a_refusal_are_read_back(code: int, message: str) -> None:
    assert read_refusal(refusal(ErrorBody(code=code, message=message))) == (code, message)


def test_a_refusal_is_written_as_code_space_message() -> None:
    assert refusal(NotAllowed("the office already has an Agent").body()) == "403 the office already has an Agent"


@pytest.mark.parametrize(
    "why",
    [
        "", "403", "Agent already in room", "room 403 is full", " 403 no", "403\tno", "299 no", "40 no", "4030 no",
        "-403 no", "+403 no", "4_03 no", "٤٠٣ no", "⁴⁰³ no", "x403 no", f"{'9' * 5000} no",
    ],
)  # fmt: skip
def test_a_refusal_text_without_a_code_is_kept_unchanged(why: str) -> None:
    assert read_refusal(why) == (None, why)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({"smcp_code": "SMCP_RATE_LIMITED"}, "SMCP_RATE_LIMITED"),
        ({}, None),
        ({"smcp_code": 429}, None),
        ({"x": "y"}, None),
    ],
)
def test_an_errors_smcp_code_comes_from_its_details(details: dict[str, object], said: str | None) -> None:
    assert SmcpError("no", details=details).smcp_code == said


class Cat(Wire):
    type: Literal["cat"]


class Dog(Wire):
    type: Literal["dog"]


def pets() -> TypeAdapter[Cat | Dog]:
    return TypeAdapter(
        Annotated[Annotated[Cat, Tag("type=cat")] | Annotated[Dog, Tag("type=dog")], by_type("cat", "dog")]
    )


@pytest.mark.parametrize(("kind", "member"), [("cat", Cat), ("dog", Dog)])
def test_the_type_chooses_the_member_of_what_is_read_and_of_what_is_written(kind: str, member: type) -> None:
    pet = pets().validate_python({"type": kind})
    assert type(pet) is member
    assert type(pets().validate_python(pet)) is member
    assert pets().dump_python(pet) == {"type": kind}


@pytest.mark.parametrize("body", [{"type": "cow"}, {"type": 1}, {"type": None}, {}, "cat", ["cat"], None])
def test_an_unknown_union_type_is_refused_with_the_known_ones(body: object) -> None:
    with pytest.raises(ValidationError) as caught:
        pets().validate_python(body)
    assert malformed(caught.value).details == {"field": "type", "reason": "is unknown or missing; known are cat, dog"}
