"""Confirmation of tool calls: by the settings, and by the user at the terminal."""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal

import mcp_types as types
import pytest
import uvloop

from smcp_bus.audit import Event, Trail
from smcp_bus.callers import Caller, Rights
from smcp_bus.ownership import Seat
from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.confirmation import (
    LONGEST,
    Answer,
    ApprovalNeeded,
    Asker,
    Confirmation,
    approval_text,
    ask_at_terminal,
    ask_program,
    may_destroy,
    refused_by,
    wanted,
)
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.mcp.transports import Limits
from smcp_computer.settings import Confirm, ConfirmPolicy
from smcp_computer.terminal import Terminal
from smcp_computer.tool_names import ToolRef
from smcp_computer.tools import Target, tool_meta_of
from smcp_proto.printable import printable
from smcp_proto.schemas.tools import ToolCallReq
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.terminal_user import terminal_user
from smcp_testing.waiting import eventually

REF = ToolRef("git", "push")


def decided(
    setting: Confirm,
    auto_apply: bool | None,
    *,
    can_ask: bool,
    policy: ConfirmPolicy | None = None,
    alias: str = "push",
    destructive: bool = False,
) -> str:
    names = frozenset(("push", alias))
    found, why = wanted(setting, policy or ConfirmPolicy(), auto_apply=auto_apply, names=names, destructive=destructive)
    return refused_by(found, why, can_ask=can_ask) or found


def push(description: str = "", **server: Any) -> Target:
    """The tool of a server that is configured so."""
    body = {"type": "stdio", "server_parameters": {"command": "git"}, **server}
    config = parse_config(json.dumps({"servers": {"git": body}}))
    git = config.servers["git"]
    supervisor = Supervisor(
        git, InputResolver({}, {}), limits=Limits(), on_change=lambda: None, host=config.host["git"]
    )
    tool = types.Tool(name="push", description=description, input_schema={})
    return Target(REF, supervisor, tool, tool_meta_of(git, "push"), supervisor.host)


def confirmation_by(
    setting: Confirm | Literal["agent"] | None, asker: Asker | None, trail: Any = None, **more: str
) -> Confirmation:
    return Confirmation(setting, asker, Seat("kitchen", "box"), trail or Trail(logging.getLogger("test")), **more)


async def refusal(
    confirmation: Confirmation, target: Target, params: Mapping[str, Any] = MappingProxyType({}), **caller: Any
) -> str | None:
    """Why a call of the Agent "alice" may not run."""
    request = ToolCallReq(agent="alice", req_id="1", computer="box", tool_name="push", params=dict(params), timeout=30)
    return await confirmation.refusal(target, request, Caller("agent", "kitchen", "alice", **caller), 1)


class Says:
    """Somebody who answers at once."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked = 0

    async def __call__(self, target: Target, request: ToolCallReq, user: str | None) -> Answer:
        self.asked += 1
        return self.answer


async def asked(confirmation: Confirmation, target: Target) -> bool:
    """Whether it may run."""
    return await refusal(confirmation, target) is None


@pytest.mark.rule("data-structures.ToolMeta.auto_apply.meaning", "answers.tools.confirm.true")
@pytest.mark.parametrize("setting", list(Confirm))
@pytest.mark.parametrize("can_ask", [True, False])
def test_auto_apply_true_never_asks(setting: Confirm, can_ask: bool) -> None:
    assert decided(setting, True, can_ask=can_ask) is Confirm.ALLOW


@pytest.mark.rule("data-structures.ToolMeta.auto_apply.meaning", "answers.tools.confirm.{false,refused}")
@pytest.mark.parametrize("setting", list(Confirm))
def test_auto_apply_false_always_asks_and_is_refused_where_nobody_can_be_asked(setting: Confirm) -> None:
    assert decided(setting, False, can_ask=True) is Confirm.ASK
    refused = decided(setting, False, can_ask=False)
    assert "SMCP_CONFIRM" in refused


@pytest.mark.rule("answers.tools.confirm.values", "answers.tools.confirm.null")
def test_without_auto_apply_the_setting_decides() -> None:
    assert decided(Confirm.ALLOW, None, can_ask=True) is Confirm.ALLOW
    assert decided(Confirm.ASK, None, can_ask=True) is Confirm.ASK
    for setting, can_ask in [(Confirm.DENY, True), (Confirm.DENY, False), (Confirm.ASK, False)]:
        refused = decided(setting, None, can_ask=can_ask)
        assert f"SMCP_CONFIRM={setting}" in refused


@pytest.mark.rule("answers.tools.confirm.default.terminal", "answers.tools.confirm.default.none")
async def test_the_default_is_ask_at_a_terminal_and_allow_elsewhere() -> None:
    async with terminal_user() as user:
        assert confirmation_by(None, partial(ask_at_terminal, Terminal(user.device))).setting is Confirm.ASK
    assert confirmation_by(None, None).setting is Confirm.ALLOW


@pytest.mark.rule("answers.tools.confirm.asked")
@pytest.mark.parametrize(("typed", "allowed"), [("y\n", True), ("YES\n", True), ("\n", False), ("no\n", False)])
async def test_the_user_is_asked_at_the_terminal(typed: str, allowed: bool) -> None:
    async with terminal_user() as user:
        confirmation = confirmation_by(Confirm.ASK, partial(ask_at_terminal, Terminal(user.device)))
        asking = asyncio.create_task(refusal(confirmation, push(), {"remote": "x"}))
        await user.sees("'push' of 'git'")
        await user.sees("Run it?")
        user.types(typed)
        assert (await asyncio.wait_for(asking, 30) is None) is allowed


async def test_a_call_that_nobody_confirmed_when_the_computer_stops_was_not_declined() -> None:
    async with terminal_user() as user:
        terminal = Terminal(user.device)
        confirmation = confirmation_by(Confirm.ASK, partial(ask_at_terminal, terminal))
        asking = asyncio.create_task(refusal(confirmation, push()))
        await user.sees("Run it?")
        terminal.close()
        why = await asyncio.wait_for(asking, 30)
        assert why is not None
        assert why.startswith("was not run: this Computer is stopping")
        assert not any(confirmation.answers.values())


async def test_a_cancelled_confirmation_is_withdrawn_and_the_next_one_is_shown() -> None:
    async with terminal_user() as user:
        confirmation = confirmation_by(Confirm.ASK, partial(ask_at_terminal, Terminal(user.device)))
        first = asyncio.create_task(refusal(confirmation, push()))
        await user.sees("Run it?")
        second = asyncio.create_task(refusal(confirmation, push()))
        first.cancel()
        await user.sees("(withdrawn)")
        await user.sees("Run it?")
        user.types("y\n")
        assert await asyncio.wait_for(second, 30) is None
        assert first.cancelled()


def test_a_question_shows_every_parameter_and_cuts_long_texts_in_the_middle() -> None:
    params = {"note": "x" * 600, "path": "/etc/cron.d/x", "more": [{"deep": "y" * 5000 + "end"}]}
    text = approval_text(REF, "alice", params)
    for shown in (
        '"note"',
        "… (600 characters) …",
        '"path": "/etc/cron.d/x"',
        '"deep"',
        "… (5003 characters) …",
        'yend"',
    ):
        assert shown in text
    assert len(text) < 600


async def test_a_call_whose_parameters_are_too_many_to_be_read_is_refused_and_nobody_is_asked() -> None:
    async with terminal_user() as user:
        confirmation = confirmation_by(Confirm.ASK, partial(ask_at_terminal, Terminal(user.device)))
        params = {f"parameter {number}": number for number in range(1000)}
        said = await refusal(confirmation, push(), params)
        assert said is not None
        assert "too many to be read" in said


@pytest.mark.parametrize(
    ("typed", "allowed"), [("y\n", False), ("PUSH\n", True), ("\n", False), ("always push\n", True)]
)
async def test_a_tool_that_says_that_it_may_destroy_something_is_confirmed_by_its_name(
    typed: str, *, allowed: bool
) -> None:
    async with terminal_user() as user:
        confirmation = confirmation_by(Confirm.ASK, partial(ask_at_terminal, Terminal(user.device)))
        target = push()
        target.tool.annotations = types.ToolAnnotations(destructive_hint=True)
        asking = asyncio.create_task(refusal(confirmation, target))
        await user.sees("Type 'push' to run it")
        user.types(typed)
        if typed == "y\n":  # another word asks again
            await user.sees("Please say: push")
            user.types("n\n")
        assert (await asyncio.wait_for(asking, 30) is None) is allowed


async def test_the_terminal_names_the_user_for_whom_an_agent_calls() -> None:
    async with terminal_user() as user:
        confirmation = confirmation_by(Confirm.ASK, partial(ask_at_terminal, Terminal(user.device)))
        rights = Rights(holder="anna", delegate="smcp-mcp")
        asking = asyncio.create_task(refusal(confirmation, push(), rights=rights))
        await user.sees("The user 'anna' wants to run 'push'")
        user.types("y\n")
        assert await asyncio.wait_for(asking, 30) is None


def test_control_characters_of_an_agent_do_not_reach_the_terminal() -> None:
    text = approval_text(REF, "al\x1b[2Jice\n", {"x": "\x1b]0;title\x07", "y": "ü读\u202e"})
    assert printable(text) == text
    assert r'{"x": "\u001b]0;title\u0007", "y": "ü读\u202e"}' in text


@pytest.mark.rule("answers.tools.confirm.policy")
@pytest.mark.parametrize(
    ("policy", "auto_apply", "destructive", "decision"),
    [
        ({"deny": ["push"], "allow": ["push"]}, True, False, "is not allowed on this Computer (confirm.deny)"),
        ({"deny": ["send"]}, None, False, "is not allowed on this Computer (confirm.deny)"),
        ({"ask": ["push"]}, True, False, Confirm.ASK),
        ({"allow": ["push"]}, False, False, Confirm.ASK),
        ({"allow": ["send"], "destructive": "deny"}, None, True, Confirm.ALLOW),
        ({"destructive": "deny"}, True, True, Confirm.ALLOW),
        ({"destructive": "ask", "default": "allow"}, None, True, Confirm.ASK),
        ({"destructive": "ask", "default": "allow"}, None, False, Confirm.ALLOW),
        ({"default": "deny"}, None, False, "is not allowed on this Computer (confirm.default)"),
    ],
)
def test_the_policy_of_a_server_decides_before_the_setting(
    policy: dict[str, Any], auto_apply: bool | None, destructive: bool, decision: str
) -> None:
    given = ConfirmPolicy.model_validate(policy)
    for setting in Confirm:
        said = decided(setting, auto_apply, can_ask=True, policy=given, alias="send", destructive=destructive)
        assert said == decision


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (None, True),
        ({}, True),
        ({"readOnlyHint": True}, False),
        ({"destructiveHint": False}, False),
        ({"readOnlyHint": False, "destructiveHint": True}, True),
    ],
)
def test_a_tool_may_destroy_something_unless_its_server_says_no(hints: dict[str, bool] | None, expected: bool) -> None:
    tool = types.Tool.model_validate({"name": "t", "inputSchema": {}, "annotations": hints})
    assert may_destroy(tool) is expected


@pytest.mark.parametrize(("answer", "questions"), [(Answer.YES, 2), (Answer.ALWAYS, 1), (Answer.HOUR, 1)])
async def test_an_answer_is_remembered_where_the_user_says_so(answer: Answer, questions: int) -> None:
    user = Says(answer)
    confirmation = confirmation_by(None, user)
    assert await asked(confirmation, push())
    assert await asked(confirmation, push())
    assert user.asked == questions
    assert {of: count for of, count in confirmation.answers.items() if count} == {answer: questions}


@pytest.mark.parametrize("answer", [Answer.ALWAYS, Answer.HOUR])
async def test_an_answer_that_cannot_be_recorded_is_not_remembered(answer: Answer) -> None:
    async def written() -> bool:
        await asyncio.sleep(0)
        return is_written

    is_written, user = False, Says(answer)
    confirmation = confirmation_by(None, user, SimpleNamespace(write=lambda event: written()))
    assert await asyncio.gather(*(asked(confirmation, push()) for _ in range(2))) == [False, False]
    assert user.asked == 2
    is_written = True
    assert await asyncio.gather(*(asked(confirmation, push()) for _ in range(2))) == [True, True]
    assert user.asked == 3


async def test_a_call_that_the_configuration_denies_is_no_approval() -> None:
    written: list[Event] = []
    trail = SimpleNamespace(write=written.append)
    denied, nobody = confirmation_by(Confirm.DENY, Says(Answer.YES), trail), confirmation_by(Confirm.ASK, None, trail)
    for confirmation in (denied, nobody, confirmation_by(Confirm.ALLOW, None, trail)):
        await refusal(confirmation, push())
    assert written == []


async def test_the_user_of_this_host_approves_its_own_calls_also_where_agents_approve_theirs() -> None:
    user = Says(Answer.YES)
    confirmation = confirmation_by("agent", user)
    with pytest.raises(ApprovalNeeded):
        await refusal(confirmation, push())
    assert await refusal(confirmation, push(), local=True) is None
    assert user.asked == 1
    refused = await refusal(confirmation_by("agent", None), push(), local=True)
    assert refused is not None
    assert "nobody can be asked on this Computer: there is neither a terminal nor SMCP_CONFIRM_COMMAND" in refused


@pytest.mark.rule("answers.calls.elicitation.form")
async def test_an_approval_that_no_agent_could_read_is_counted_and_recorded(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world(nats_url, {"confirm": "agent"}, box=configs.stdio()) as here:
        asked = await here.call("echo", text="x")
        assert "a2c_approval" in asked["meta"]["a2c_input_required"]["requests"]
        refused = await here.call("echo", "r2", text="x", more=["x"] * LONGEST)
        assert "too many to be read" in refused["content"][0]["text"]
        assert here.computer.confirmation.answers["unreadable"] == 1
    approvals = [record.__dict__ for record in caplog.records if record.message == "approval"]
    assert [(each["req_id"], each["outcome"]) for each in approvals] == [("r2", "unreadable")]


async def test_another_tool_under_the_same_name_is_asked_about_again_and_a_denied_one_is_not_run() -> None:
    user = Says(Answer.ALWAYS)
    confirmation = confirmation_by(None, user)
    assert await asked(confirmation, push())
    assert await asked(confirmation, push("another description"))
    assert await asked(confirmation, push(server_parameters={"command": "another"}))
    assert user.asked == 3
    assert not await asked(confirmation, push(confirm={"deny": ["push"]}))


async def test_another_word_at_the_terminal_asks_again() -> None:
    async with terminal_user() as user:
        confirmation = confirmation_by(None, partial(ask_at_terminal, Terminal(user.device)))
        asking = asyncio.create_task(asked(confirmation, push()))
        await user.sees("Run it?")
        user.types("yse\n")
        await user.sees("Please say")
        user.types("always\n")
        assert await asyncio.wait_for(asking, 30)
        assert await asyncio.wait_for(asked(confirmation, push()), 30)


@pytest.mark.parametrize(
    ("program", "allowed"),
    [
        ("import json, sys; sys.exit(json.load(sys.stdin)['tool'] != 'push')", True),
        ("import json, sys; sys.exit(json.load(sys.stdin)['user'] is not None)", True),
        ("import sys; sys.exit(1)", False),
    ],
)
async def test_a_program_confirms_by_its_exit_status(program: str, allowed: bool) -> None:
    assert await asked(confirmation_by(None, partial(ask_program, [sys.executable, "-c", program])), push()) is allowed


def test_a_program_that_ends_before_it_has_read_the_question_is_heard() -> None:
    async def busy() -> None:
        while True:
            time.sleep(0.02)  # noqa: ASYNC251 -- the program ends meanwhile
            await asyncio.sleep(0)

    async def asked_often() -> list[str | None]:
        confirmation = confirmation_by(None, partial(ask_program, ["true"]))
        keeping = asyncio.create_task(busy())
        try:
            return [await refusal(confirmation, push()) for _ in range(10)]
        finally:
            keeping.cancel()

    # uvloop refuses to write to a program that has ended, with an error of its own
    assert uvloop.run(asked_often()) == [None] * 10


async def test_a_program_that_cannot_be_started_confirms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert not await asked(confirmation_by(None, partial(ask_program, ["/no/such/program"])), push())
    assert "SMCP_CONFIRM_COMMAND: cannot be started" in caplog.text


async def test_a_question_to_a_program_is_withdrawn_with_its_call(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    asking = asyncio.create_task(
        asked(confirmation_by(None, partial(ask_program, [sys.executable, "-c", program])), push())
    )
    await eventually(lambda: pid.exists() and pid.read_text())
    asking.cancel()
    await asyncio.wait([asking])
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("setting", "asker", "policy"),
    [
        (None, None, "run without approval (no terminal is attached; see SMCP_CONFIRM)"),
        (
            None,
            partial(ask_program, ["x"]),
            "need approval by the program of SMCP_CONFIRM_COMMAND (SMCP_CONFIRM=allow turns this off)",
        ),
        (Confirm.ASK, None, "are refused (SMCP_CONFIRM=ask, and nobody can be asked)"),
        (Confirm.ALLOW, partial(ask_program, ["x"]), "run without approval (SMCP_CONFIRM=allow)"),
        (Confirm.DENY, None, "are refused (SMCP_CONFIRM=deny)"),
    ],
)
async def test_the_policy_that_holds_is_told_with_its_reason(
    setting: Confirm | None, asker: Asker | None, policy: str
) -> None:
    where = "by the program of SMCP_CONFIRM_COMMAND"
    assert confirmation_by(setting, asker, where=where).policy == policy
