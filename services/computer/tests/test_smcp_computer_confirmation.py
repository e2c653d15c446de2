"""Confirmation of tool calls: by the settings, and by the user at the terminal."""

import asyncio
import io
import os
import pty

import pytest

from smcp_computer.confirmation import Confirm, Confirmation, Decision, Terminal, decide, printable, question
from smcp_computer.tools import ToolRef

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
    master, slave = pty.openpty()
    try:
        assert Confirmation(None, Terminal(slave, io.StringIO())).setting is Confirm.ASK
    finally:
        os.close(master)
        os.close(slave)
    assert Confirmation(None, None).setting is Confirm.ALLOW


@pytest.mark.rule("answers.tools.confirm.asked")
@pytest.mark.parametrize(("typed", "allowed"), [(b"y\n", True), (b"YES\n", True), (b"\n", False), (b"no\n", False)])
async def test_the_user_is_asked_at_the_terminal(typed: bytes, allowed: bool) -> None:
    master, slave = pty.openpty()
    out = _Asked()
    try:
        confirmation = Confirmation(Confirm.ASK, Terminal(slave, out))
        asking = asyncio.create_task(confirmation.refusal(REF, agent="alice", auto_apply=None, params={"remote": "x"}))
        await asyncio.wait_for(out.asked.wait(), 30)
        os.write(master, typed)
        refusal = await asyncio.wait_for(asking, 30)
    finally:
        os.close(master)
        os.close(slave)
    assert (refusal is None) is allowed
    assert "'push' of 'git'" in out.getvalue()


async def test_a_cancelled_confirmation_is_withdrawn_and_the_next_one_is_shown() -> None:
    master, slave = pty.openpty()
    out = _Asked()
    try:
        confirmation = Confirmation(Confirm.ASK, Terminal(slave, out))
        first = asyncio.create_task(confirmation.refusal(REF, agent="alice", auto_apply=None, params={}))
        await asyncio.wait_for(out.asked.wait(), 30)
        out.asked.clear()
        second = asyncio.create_task(confirmation.refusal(REF, agent="alice", auto_apply=None, params={}))
        first.cancel()
        await asyncio.wait([first])
        await asyncio.wait_for(out.asked.wait(), 30)
        os.write(master, b"y\n")
        assert await asyncio.wait_for(second, 30) is None
    finally:
        os.close(master)
        os.close(slave)
    assert "(withdrawn)" in out.getvalue()


def test_control_characters_of_an_agent_do_not_reach_the_terminal() -> None:
    text = question(REF, "al\x1b[2Jice\n", {"x": "\x1b]0;title\x07", "y": "ü读\u202e"})
    assert printable(text) == text
    assert "ü读" in text


class _Asked(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    def write(self, text: str) -> int:
        if "Run it?" in text:
            self.asked.set()
        return super().write(text)
