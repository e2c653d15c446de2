"""A call that a server of MCP 2025 keeps running while it elicits: whose elicitation it is, what is kept."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import mcp_types as types
import pytest

from smcp_bus.callers import Caller
from smcp_computer.elicitation import MAX_BYTES, MAX_KEPT_RESULT, MAX_PER_CALL, PendingCall
from smcp_computer.handlers.tool_call import CallRecord
from smcp_computer.mcp.sdk_adapter import CallSpan, Watch
from smcp_proto.schemas.tools import ToolCallReq
from smcp_testing.waiting import eventually

ALICE = {"to": "Alice"}


def pending(
    params: dict[str, Any] = ALICE, *, agent: str = "anna", subject: str = "key-1", **fields: Any
) -> PendingCall:
    request = ToolCallReq(agent=agent, req_id="1", computer="box", tool_name="transfer", params=params, timeout=30)
    calls, parked = cast("Any", SimpleNamespace(at_terminal=None)), cast("Any", SimpleNamespace(settled=True))
    caller = Caller("agent", "office", agent, subject=subject)
    return PendingCall(calls, request, parked, CallRecord("transfer", agent), caller, CallSpan({}))


def form(message: str = "Sure?") -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message=message, requested_schema={"type": "object", "properties": {}})


class Answering:
    """A call that accepts what its server asks."""

    open_count = 0

    def __init__(self, identity: object) -> None:
        self.identity = identity
        self.elicited = 0

    def give_way(self) -> None:
        pass

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.elicited += 1
        return types.ElicitResult(action="accept")


async def elicit_during(*calls: PendingCall) -> tuple[Any, int]:
    """The answer to a server that elicits while these calls run, and how many of them were asked."""
    watch = Watch("bank")
    running = [Answering(call.identity) for call in calls]
    watch.elicitors.update({object(): each for each in running})
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
    assert call.open_count == kept
    ended = [each.result() for each in pushed if each.done()]
    refused = [answer for answer in ended if isinstance(answer, types.ErrorData)]
    assert len(refused) == len(pushed) - kept
    assert all("elicitation refused" in answer.message for answer in refused)
    call.close()
    answers = [answer for each in pushed if isinstance(answer := await each, types.ElicitResult)]
    assert [answer.action for answer in answers] == ["cancel"] * kept
    assert call.open_count == 0


def test_a_large_result_is_not_kept_for_a_request_that_is_still_to_come() -> None:
    call = pending()
    whole = b"x" * MAX_KEPT_RESULT
    assert call.kept(whole) == whole
    result = json.loads(call.kept(whole + b"x"))
    assert result["isError"] is True
    why = "ended before its elicitation was answered, with more than 1048576 bytes: they are not kept"
    assert result["content"][0]["text"] == f"the tool 'transfer' {why}"
    assert (call.record.outcome, call.record.why) == ("failed", why)
