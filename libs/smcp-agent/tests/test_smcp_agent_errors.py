import pytest

from smcp_agent.errors import (
    CannotConnect,
    ConnectionLost,
    JoinRefused,
    McpError,
    NotFound,
    SmcpError,
    TimedOut,
    Unavailable,
    flat_error,
    may_have_run,
    without_traceback,
)
from smcp_proto.errors import ERRORS, error_of


@pytest.mark.rule("answers.errors.codes")
@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_code_of_the_wire_has_its_class(code: int) -> None:
    error = flat_error({"code": code, "message": "why", "details": {"field": "x"}})
    assert type(error) is ERRORS[code]
    assert (error.message, error.details) == ("why", {"field": "x"})


def test_what_is_too_large_says_how_large_and_what_the_limit_is_once() -> None:
    details = {"size": 9_000_000, "limit": 8_388_608}
    said = [str(error_of(413, message, details)) for message in ("the request is too large", "above 8388608 bytes")]
    assert said == ["the request is too large: 9000000 bytes, the limit is 8388608", "above 8388608 bytes"]
    assert str(error_of(413, "the answer is too large", {})) == "the answer is too large"


def test_an_unknown_error_code_is_kept() -> None:
    error = flat_error({"code": 4711, "message": "why"})
    assert type(error) is SmcpError
    assert error.code == 4711


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "text",
        {},
        {"code": 404},
        {"code": "404", "message": "x"},
        {"code": True, "message": "x"},
        {"content": []},
    ],
)
def test_other_values_are_not_taken_for_flat_errors(data: object) -> None:
    assert flat_error(data) is None


def test_a_reply_with_its_own_fields_is_no_error_even_if_it_has_a_code() -> None:
    data = {"code": 404, "message": "x", "content": []}
    assert flat_error(data, expected=("content",)) is None
    assert isinstance(flat_error(data), NotFound)


@pytest.mark.parametrize(
    "error",
    [
        *(kind("why", details={"field": "x"}) for kind in ERRORS.values()),
        error_of(4711, "why", {"field": "x"}),
        McpError("why", rpc_code=-32002, data={"smcp_code": "SMCP_RESOURCE_NOT_FOUND"}),
        ConnectionLost("why", may_have_run=True),
        CannotConnect("why", details={"urls": {}}),
        JoinRefused("why", details={"why": "y"}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_every_class_can_be_copied(error: SmcpError) -> None:
    again = without_traceback(error)
    assert type(again) is type(error)
    assert (str(again), again.code, vars(again)) == (str(error), error.code, vars(error))
    again.details["may_have_run"] = "changed"
    assert again.details != error.details


def test_may_have_run_tells_whether_the_tool_may_have_run() -> None:
    assert may_have_run(Unavailable("x", details={"may_have_run": True}))
    assert may_have_run(TimedOut("x"))
    assert may_have_run(ConnectionLost("x", may_have_run=True))
    assert not may_have_run(ConnectionLost("x", may_have_run=False))
    assert not may_have_run(NotFound("x"))
    assert isinstance(ConnectionLost("x", may_have_run=True), SmcpError)
