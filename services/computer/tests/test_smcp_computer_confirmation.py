"""Confirmation of tool calls: by the settings, and by the user at the terminal."""

import asyncio

import pytest

from smcp_computer.confirmation import AtTerminal, Confirm, Confirmation, Decision, decide, question
from smcp_computer.terminal import Terminal, printable
from smcp_computer.tools import ToolRef
from smcp_testing.terminal_user import terminal_user

REF = ToolRef("git", "push")


@pytest.mark.rule("data-structures.ToolMeta.auto_apply.meaning", "answers.tools.confirm.true")
@pytest.mark.parametrize("setting", list(Confirm))
@pytest.mark.parametrize("can_ask", [True, False])
def test_auto_apply_true_never_asks(setting: Confirm, can_ask: bool) -> None:
    assert decide(setting, True, can_ask=can_ask) is Decision.RUN


@pytest.mark.rule(
    "data-structures.ToolMeta.auto_apply.meaning", "answers.tools.confirm.false", "answers.tools.confirm.refused"
)
@pytest.mark.parametrize("setting", list(Confirm))
def test_auto_apply_false_always_asks_and_is_refused_where_nobody_can_be_asked(setting: Confirm) -> None:
    assert decide(setting, False, can_ask=True) is Decision.ASK
    refused = decide(setting, False, can_ask=False)
    assert isinstance(refused, str)
    assert "SMCP_CONFIRM" in refused


@pytest.mark.rule("answers.tools.confirm.values", "answers.tools.confirm.null")
def test_without_auto_apply_the_setting_decides() -> None:
    assert decide(Confirm.ALLOW, None, can_ask=True) is Decision.RUN
    assert decide(Confirm.ASK, None, can_ask=True) is Decision.ASK
    for setting, can_ask in [(Confirm.DENY, True), (Confirm.DENY, False), (Confirm.ASK, False)]:
        refused = decide(setting, None, can_ask=can_ask)
        assert isinstance(refused, str)
        assert f"SMCP_CONFIRM={setting}" in refused


@pytest.mark.rule("answers.tools.confirm.default.terminal", "answers.tools.confirm.default.none")
async def test_the_default_is_ask_at_a_terminal_and_allow_elsewhere() -> None:
    async with terminal_user() as user:
        assert Confirmation(None, AtTerminal(Terminal(user.device))).setting is Confirm.ASK
    assert Confirmation(None, None).setting is Confirm.ALLOW


@pytest.mark.rule("answers.tools.confirm.asked")
@pytest.mark.parametrize(("typed", "allowed"), [("y\n", True), ("YES\n", True), ("\n", False), ("no\n", False)])
async def test_the_user_is_asked_at_the_terminal(typed: str, allowed: bool) -> None:
    async with terminal_user() as user:
        confirmation = Confirmation(Confirm.ASK, AtTerminal(Terminal(user.device)))
        asking = asyncio.create_task(confirmation.refusal(REF, agent="alice", auto_apply=None, params={"remote": "x"}))
        await user.sees("'push' of 'git'")
        await user.sees("Run it?")
        user.types(typed)
        assert (await asyncio.wait_for(asking, 30) is None) is allowed


async def test_a_cancelled_confirmation_is_withdrawn_and_the_next_one_is_shown() -> None:
    async with terminal_user() as user:
        confirmation = Confirmation(Confirm.ASK, AtTerminal(Terminal(user.device)))
        first = asyncio.create_task(confirmation.refusal(REF, agent="alice", auto_apply=None, params={}))
        await user.sees("Run it?")
        second = asyncio.create_task(confirmation.refusal(REF, agent="alice", auto_apply=None, params={}))
        first.cancel()
        await user.sees("(withdrawn)")
        await user.sees("Run it?")
        user.types("y\n")
        assert await asyncio.wait_for(second, 30) is None
        assert first.cancelled()


def test_control_characters_of_an_agent_do_not_reach_the_terminal() -> None:
    text = question(REF, "al\x1b[2Jice\n", {"x": "\x1b]0;title\x07", "y": "ü读\u202e"})
    assert printable(text) == text
    assert "ü读" in text
