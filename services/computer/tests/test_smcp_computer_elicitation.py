"""Open elicitations of a Computer: how many there may be, and what becomes of those that nobody answers; and the calls
that a server of MCP 2025 keeps running while it elicits.
"""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import mcp_types as types
import pytest

from smcp_bus.callers import Caller
from smcp_computer.elicitation import (
    MAX_BYTES,
    MAX_KEPT_RESULT,
    MAX_PER_CALL,
    ElicitationRefused,
    OpenElicitation,
    OpenElicitations,
    ToolCall,
    approval,
    check,
)
from smcp_computer.handlers.tool_call import CallRecord
from smcp_computer.mcp.sdk_adapter import Watch
from smcp_proto.errors import Malformed
from smcp_proto.schemas.tools import ToolCallReq
from smcp_testing.waiting import eventually

FORM: dict[str, Any] = {"method": "elicitation/create", "params": {"message": "Which day?"}}


class Waiting:
    """A call that waits for an answer."""

    stopped = ""

    def stop(self, why: str) -> None:
        self.stopped = why


def request(req_id: str = "1", table: object = 4, **fields: Any) -> ToolCallReq:
    return ToolCallReq(
        agent="anna", req_id=req_id, computer="box", tool_name="book", params={"table": table}, timeout=30, **fields
    )


def elicitation(
    req_id: str = "1", waiting: Waiting | None = None, form: Any = FORM, *, subject: str = "key-1", table: object = 4
) -> OpenElicitation:
    calls = running = cast("Any", None)  # not looked at here
    caller = Caller("agent", "office", "anna", subject=subject)
    call = ToolCall(calls, request(req_id, table), running, CallRecord("book", "anna"), caller, {}, 1)
    if waiting is not None:
        call.stop = waiting.stop
    return OpenElicitation(call, {"q": form}, keeps_call_open=waiting is not None)


async def test_a_computer_has_64_open_elicitations_at_most_and_closing_stops_the_calls_that_wait() -> None:
    elicitations = OpenElicitations(within_s=60)
    calls = [Waiting() for _ in range(64)]
    for number, call in enumerate(calls):
        elicitations.add(elicitation(str(number), call, subject=f"key-{1 + number // 16}"))
    with pytest.raises(ElicitationRefused, match="too many or too large calls of this user wait for answers already"):
        elicitations.add(elicitation("one more"))
    elicitations.cancel("anna", ("0", "of another"))
    elicitations.cancel("bert", ("0", "key-1"))
    assert len(elicitations) == 64
    elicitations.cancel("anna", ("0", "key-1"))
    assert calls[0].stopped == "cancelled"
    elicitations.add(elicitation("one more"))
    elicitations.close()
    assert [each.stopped for each in calls[1:]] == ["aborted"] * 63
    assert len(elicitations) == 0


async def test_one_user_has_half_of_a_computers_open_elicitations_at_most() -> None:
    elicitations = OpenElicitations(within_s=60)
    with pytest.raises(ElicitationRefused, match="of this user wait for answers already"):
        for number in range(64):
            elicitations.add(elicitation(str(number)))
    assert len(elicitations) == 32
    elicitations.add(elicitation("of another", subject="key-2"))
    elicitations.close()


async def test_one_users_waiting_calls_leave_room_for_the_parameters_of_others() -> None:
    elicitations = OpenElicitations(within_s=60)

    def waiting(req_id: str, subject: str) -> OpenElicitation:
        return elicitation(req_id, Waiting(), subject=subject, table="x" * (8 * 1024 * 1024 - 64))

    elicitations.add(waiting("1", "key-1"))
    elicitations.add(waiting("2", "key-1"))
    with pytest.raises(ElicitationRefused, match="too large calls of this user wait"):
        elicitations.add(waiting("3", "key-1"))
    elicitations.add(waiting("4", "key-2"))
    elicitations.cancel("anna", ("1", "key-1"))
    elicitations.cancel("anna", ("2", "key-1"))
    elicitations.add(waiting("5", "key-1"))
    elicitations.close()


@pytest.mark.rule("answers.calls.elicitation.dropped")
async def test_the_elicitations_of_a_call_that_is_cancelled_and_of_an_agent_that_left_are_dropped() -> None:
    elicitations, state = OpenElicitations(within_s=60), ""
    for number in "123":
        state = elicitations.add(elicitation(number))["meta"]["a2c_input_required"]["state"]
    elicitations.take(request("4", input_state=state, input_responses={"q": {"action": "decline"}}), "key-1")
    elicitations.cancel("anna", ("1", "key-1"))
    assert len(elicitations) == 1
    elicitations.cancel("bert")
    assert len(elicitations) == 1
    elicitations.cancel("anna")
    assert len(elicitations) == 0


@pytest.mark.rule("answers.calls.elicitation.state")
async def test_only_the_subject_that_was_asked_can_answer() -> None:
    elicitations = OpenElicitations(within_s=60)
    result = elicitations.add(elicitation())
    assert (
        result["content"][0]["text"] == "the tool 'book' needs an answer, and has not ended. The question: Which day?"
    )
    asked = result["meta"]["a2c_input_required"]
    assert asked["expires_in_s"] == 60
    answer = request("2", input_state=asked["state"], input_responses={"q": {"action": "decline"}})
    with pytest.raises(Malformed) as refused:
        elicitations.take(answer, "key-2")
    assert refused.value.details["field"] == "input_state"
    assert "older than 60 s (SMCP_QUESTION_S). The tool did not continue" in refused.value.message
    assert elicitations.take(answer, "key-1").call.request.req_id == "1"
    assert len(elicitations) == 0


@pytest.mark.parametrize(
    ("form", "state"),
    [
        ({"method": "elicitation/create", "params": {"message": "?" * MAX_BYTES}}, None),
        (FORM, "s" * MAX_BYTES),
    ],
)
def test_elicitations_that_are_too_large_are_refused(form: dict[str, Any], state: str | None) -> None:
    with pytest.raises(ElicitationRefused, match="sent an elicitation of more than 65536 bytes"):
        check({"q": form}, 1, state)


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
def test_what_mcp_has_deprecated_is_refused(method: str) -> None:
    with pytest.raises(ElicitationRefused, match=f"asks for '{method}', which A2C-SMCP does not support"):
        check({"q": {"method": method}}, 1)


async def test_an_mcp_server_cannot_pose_as_the_computers_approval_request() -> None:
    elicitations = OpenElicitations(within_s=60)
    asked = approval("'box' wants to run 'book'. Run it?")
    with pytest.raises(ElicitationRefused, match="under 'a2c_approval': such a key is the Computer's own"):
        check(asked, 1)
    result = elicitations.add(replace(elicitation(), requests=asked, is_approval=True))
    assert list(result["meta"]["a2c_input_required"]["requests"]) == ["a2c_approval"]


@pytest.mark.parametrize("schema", [{"properties": {"day": 5}}, {"properties": {"day": {"enum": 5}}}, {"$ref": "x:y"}])
def test_a_form_whose_schema_cannot_be_used_is_refused(schema: dict[str, Any]) -> None:
    form = {**FORM, "params": {"message": "Which day?", "requestedSchema": schema}}
    with pytest.raises(ElicitationRefused, match="sent an elicitation whose schema cannot be used"):
        check({"q": form}, 1)


@pytest.mark.rule("answers.calls.elicitation.fit")
async def test_an_answer_that_mcp_does_not_know_is_refused_also_where_the_schema_takes_it() -> None:
    elicitations = OpenElicitations(within_s=60)
    form = {**FORM, "params": {"message": "Which day?", "requestedSchema": {"type": "object", "properties": {}}}}
    state = elicitations.add(elicitation(form=form))["meta"]["a2c_input_required"]["state"]
    for content, field in (({"day": {"of": "week"}}, "content.day"), ([], "content"), ("friday", "content")):
        answer = request("2", input_state=state, input_responses={"q": {"action": "accept", "content": content}})
        with pytest.raises(Malformed) as refused:
            elicitations.take(answer, "key-1")
        assert refused.value.details["field"] == f"input_responses.q.{field}"
    assert len(elicitations) == 1


ALICE = {"to": "Alice"}


def pending(params: dict[str, Any] = ALICE, *, agent: str = "anna", subject: str = "key-1", **fields: Any) -> ToolCall:
    request = ToolCallReq(agent=agent, req_id="1", computer="box", tool_name="transfer", params=params, timeout=30)
    calls, parked = cast("Any", SimpleNamespace(at_terminal=None)), cast("Any", SimpleNamespace(settled=True))
    caller = Caller("agent", "office", agent, subject=subject)
    return ToolCall(calls, request, parked, CallRecord("transfer", agent), caller, {}, 1)


def form(message: str = "Sure?") -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message=message, requested_schema={"type": "object", "properties": {}})


class Answering:
    """A call that accepts what its server asks."""

    def __init__(self, identity: object) -> None:
        self.identity = identity
        self.unanswered: dict[str, Any] = {}
        self.elicited = 0

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.elicited += 1
        return types.ElicitResult(action="accept")


async def elicit_during(*calls: ToolCall) -> tuple[Any, int]:
    """The answer to a server that elicits while these calls run, and how many of them were asked."""
    watch = Watch("bank")
    running = [Answering(call.identity) for call in calls]
    watch.elicitors.update({number: cast("ToolCall", each) for number, each in enumerate(running)})
    return await watch.elicit(cast("Any", None), form()), sum(each.elicited for each in running)


async def test_an_elicitation_reaches_one_of_calls_that_do_not_differ() -> None:
    answer, asked = await elicit_during(pending(), pending())
    assert answer.action == "accept"
    assert asked == 1


async def test_an_elicitation_is_refused_while_calls_of_one_tool_differ_in_parameters_or_caller() -> None:
    for other in (pending({"to": "Mallory"}), pending(subject="key-2"), pending(agent="bert")):
        answer, asked = await elicit_during(pending(), other)
        assert "MCP 2025 does not say which of the calls asks" in answer.message
        assert asked == 0


@pytest.mark.parametrize(("size", "kept"), [(1, MAX_PER_CALL), (MAX_BYTES // 4, 3), (MAX_BYTES, 0)])
async def test_of_the_elicitations_that_a_server_pushes_only_those_within_the_bounds_are_kept(
    size: int, kept: int
) -> None:
    call = pending()
    pushed = [asyncio.create_task(call.elicit(form("?" * size))) for _ in range(1000)]
    await eventually(lambda: sum(each.done() for each in pushed) == len(pushed) - kept)
    assert len(call.unanswered) == kept
    ended = [each.result() for each in pushed if each.done()]
    refused = [answer for answer in ended if isinstance(answer, types.ErrorData)]
    assert len(refused) == len(pushed) - kept
    assert all("elicitation refused" in answer.message for answer in refused)
    call.close()
    answers = [answer for each in pushed if isinstance(answer := await each, types.ElicitResult)]
    assert [answer.action for answer in answers] == ["cancel"] * kept
    assert len(call.unanswered) == 0


def test_a_large_result_is_not_kept_for_a_request_that_is_still_to_come() -> None:
    call = pending()
    whole = b"x" * MAX_KEPT_RESULT
    assert call.kept(whole) == whole
    result = json.loads(call.kept(whole + b"x"))
    assert result["isError"] is True
    why = "ended before its elicitation was answered, with more than 1048576 bytes: they are not kept"
    assert result["content"][0]["text"] == f"the tool 'transfer' {why}"
    assert (call.record.outcome, call.record.why) == ("failed", why)
