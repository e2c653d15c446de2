"""Questions that are open at a Computer: how many there may be, and what becomes of those that nobody answers."""

from typing import Any, cast

import pytest

from smcp_computer.questions import MAX_BYTES, MAX_OPEN, NotAsked, Question, Questions
from smcp_computer.tools import Target
from smcp_proto.errors import Malformed
from smcp_proto.schemas.tools import ToolCallReq

FORM: dict[str, Any] = {"method": "elicitation/create", "params": {"message": "Which day?"}}


class Waiting:
    """A call that waits for an answer."""

    stopped = ""

    def stop(self, why: str) -> None:
        self.stopped = why


def request(req_id: str = "1", **fields: Any) -> ToolCallReq:
    return ToolCallReq(
        agent="anna", req_id=req_id, computer="box", tool_name="book", params={"table": 4}, timeout=30, **fields
    )


def question(req_id: str = "1", waiting: Waiting | None = None, form: Any = FORM, state: str | None = None) -> Question:
    target = cast("Target", None)  # not looked at here
    return Question(request(req_id), "key-1", target, {"q": form}, 1, state, waiting=waiting)


async def test_a_computer_has_64_open_questions_at_most_and_closing_stops_the_calls_that_wait() -> None:
    questions = Questions(within_s=60)
    calls = [Waiting() for _ in range(MAX_OPEN)]
    for number, call in enumerate(calls):
        questions.ask(question(str(number), call))
    with pytest.raises(NotAsked, match="64 questions of this Computer have to be answered first"):
        questions.ask(question("one more"))
    questions.cancel("anna", "0", "of another")
    questions.cancel("bert", "0", "key-1")
    assert len(questions) == MAX_OPEN
    questions.cancel("anna", "0", "key-1")
    assert calls[0].stopped == "cancelled"
    questions.ask(question("one more"))
    questions.close()
    assert [each.stopped for each in calls[1:]] == ["aborted"] * (MAX_OPEN - 1)
    assert len(questions) == 0


async def test_a_question_is_answered_by_the_subject_that_was_asked_alone() -> None:
    questions = Questions(within_s=60)
    asked = questions.ask(question())["meta"]["a2c_input_required"]
    answer = request("2", input_state=asked["state"], input_responses={"q": {"action": "decline"}})
    with pytest.raises(Malformed) as refused:
        questions.answered(answer, "key-2")
    assert refused.value.details["field"] == "input_state"
    assert questions.answered(answer, "key-1").request.req_id == "1"
    assert len(questions) == 0


@pytest.mark.parametrize(
    ("form", "state"),
    [
        ({"method": "elicitation/create", "params": {"message": "?" * MAX_BYTES}}, None),
        (FORM, "s" * MAX_BYTES),
    ],
)
async def test_questions_that_are_too_large_are_not_asked(form: dict[str, Any], state: str | None) -> None:
    with pytest.raises(NotAsked, match="asks with more than 65536 bytes"):
        Questions(within_s=60).ask(question(form=form, state=state))


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
async def test_what_mcp_has_deprecated_is_not_asked(method: str) -> None:
    with pytest.raises(NotAsked, match=f"asks for '{method}', which A2C-SMCP does not support"):
        Questions(within_s=60).ask(question(form={"method": method}))


@pytest.mark.parametrize("schema", [{"properties": {"day": 5}}, {"properties": {"day": {"enum": 5}}}, {"$ref": "x:y"}])
async def test_a_form_whose_schema_cannot_be_used_is_not_asked(schema: dict[str, Any]) -> None:
    form = {**FORM, "params": {"message": "Which day?", "requestedSchema": schema}}
    with pytest.raises(NotAsked, match="asks for an answer by a schema that cannot be used"):
        Questions(within_s=60).ask(question(form=form))


async def test_an_answer_that_mcp_does_not_know_is_refused_also_where_the_schema_takes_it() -> None:
    questions = Questions(within_s=60)
    form = {**FORM, "params": {"message": "Which day?", "requestedSchema": {"type": "object", "properties": {}}}}
    state = questions.ask(question(form=form))["meta"]["a2c_input_required"]["state"]
    for content, field in (({"day": {"of": "week"}}, "content.day"), ([], "content"), ("friday", "content")):
        answer = request("2", input_state=state, input_responses={"q": {"action": "accept", "content": content}})
        with pytest.raises(Malformed) as refused:
            questions.answered(answer, "key-1")
        assert refused.value.details["field"] == f"input_responses.q.{field}"
    assert len(questions) == 1
