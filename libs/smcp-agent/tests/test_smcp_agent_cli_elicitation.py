"""`smcp-agent call` asks at the terminal what a tool or its Computer elicits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from smcp_testing.agent_command import ended, run, start
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.terminal_user import TerminalUser, terminal_user
from smcp_testing.waiting import eventually

DAY = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "enum": ["monday", "friday"]},
        "guests": {"type": "integer", "default": 2},
    },
    "required": ["day"],
}


def elicitation(**params: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"mode": "form", **params}}


@asynccontextmanager
async def eliciting(requests: dict[str, Any]) -> AsyncIterator[FakeGateway]:
    """A gateway with a tool that asks for a day before friday is given to it, and says what it was answered."""

    async def answer(data: dict[str, Any]) -> Any:
        if "input_state" not in data:
            asked = {"requests": requests, "state": "s"}
            text = {"type": "text", "text": "the tool 'book' needs an answer"}
            return {"content": [text], "isError": True, "meta": {"a2c_input_required": asked}}
        for key, given in data["input_responses"].items():
            if given.get("content", {}).get("day") == "sunday":
                field = f"input_responses.{key}.content.day"
                return {"code": 400, "message": f"{field}: is no day of ours", "details": {"field": field}}
        return {"content": [{"type": "text", "text": "booked"}], "isError": False}

    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("book")]
        gateway.answers["client:tool_call"] = answer
        yield gateway


async def talk(gateway: FakeGateway, user: TerminalUser, *lines: tuple[str, str]) -> tuple[int | None, bytes]:
    """Run a call at the user's terminal, who types each line after what stands before it is shown."""
    process = await start(gateway, "call", "red", "book", stdin=user.device, stderr=user.device, forked=True)
    for seen, typed in lines:
        await user.sees(seen)
        user.types(typed)
    code, out, _ = await ended(process)
    assert "Traceback" not in user.shown
    return code, out


def responses(gateway: FakeGateway) -> Any:
    return gateway.seen("client:tool_call")[-1]["input_responses"]


async def test_each_field_of_a_form_is_asked_and_after_a_refused_answer_the_wrong_one_again() -> None:
    async with eliciting({"q": elicitation(message="Which day?", requestedSchema=DAY)}) as gateway:
        async with terminal_user() as user:
            code, out = await talk(
                gateway,
                user,
                ("The tool 'book' of 'red' asks: Which day?\nAnswer it?", "y\n"),
                ("day (monday, friday; required)\nday: ", "sunday\n"),
                ("guests (integer; default: 2)\nguests: ", "4\n"),
                ("The last answer was refused: day: is no day of ours", ""),
                ("Answer it?", "perhaps\n"),
                ("Please say: y, yes, n, no", "y\n"),
                ("day: ", "friday\n"),
            )
        assert (code, out) == (0, b"booked\n")
        assert responses(gateway) == {"q": {"action": "accept", "content": {"day": "friday", "guests": 4}}}


async def test_an_approval_is_a_yes_or_a_no() -> None:
    asked = {"a2c_approval": elicitation(message="The Agent 'bot' wants to run 'book'. Run it?", requestedSchema={})}
    for word, action in (("y\n", "accept"), ("\n", "decline")):
        async with eliciting(asked) as gateway, terminal_user() as user:
            code, _ = await talk(gateway, user, ("The Agent 'bot' wants to run 'book'. Run it?\n[y/N] ", word))
            assert code == 0
            assert responses(gateway)["a2c_approval"]["action"] == action


async def test_what_was_typed_before_the_question_is_no_approval() -> None:
    asked = {"a2c_approval": elicitation(message="Run it?", requestedSchema={})}
    async with eliciting(asked) as gateway, terminal_user() as user:
        user.types("y\n")
        await talk(gateway, user, ("Run it?\n[y/N] ", "n\n"))
        assert responses(gateway)["a2c_approval"]["action"] == "decline"


async def test_a_page_is_printed_and_not_opened() -> None:
    page = elicitation(mode="url", message="Pay first", url="https://pay.example/1")
    async with eliciting({"q": page}) as gateway, terminal_user() as user:
        code, _ = await talk(gateway, user, ("It wants you to open https://pay.example/1\nOpen it?", "n\n"))
        assert code == 0
        assert responses(gateway) == {"q": {"action": "decline"}}


async def test_ctrl_d_dismisses_a_question_and_ctrl_c_cancels_the_call() -> None:
    async with eliciting({"q": elicitation(message="Which day?", requestedSchema=DAY)}) as gateway:
        async with terminal_user() as user:
            code, _ = await talk(gateway, user, ("Answer it?", "y\n"), ("day: ", "\x04"))
            assert code == 0
            assert responses(gateway) == {"q": {"action": "cancel"}}
        async with terminal_user() as user:
            process = await start(gateway, "call", "red", "book", stdin=user.device, stderr=user.device)
            await user.sees("Answer it?")
            process.send_signal(2)
            code, _, _ = await ended(process)
            assert code == 130
            await eventually(lambda: gateway.seen("server:tool_call_cancel"))


async def test_without_a_terminal_the_call_fails_and_says_what_was_asked() -> None:
    async with eliciting({"q": elicitation(message="Which day?", requestedSchema=DAY)}) as gateway:
        code, out, _ = await run(gateway, "call", "red", "book")
        assert code == 1
        assert out.decode().splitlines() == [
            "the tool 'book' needs an answer",
            "Nobody answered, and the call was cancelled.",
        ]
        await eventually(lambda: gateway.seen("server:tool_call_cancel"))
