"""Approval of tool calls: the policy, and who is asked.

`SMCP_CONFIRM=agent` asks the Agent by an elicitation. Otherwise the program of `SMCP_CONFIRM_COMMAND` is asked, or the
user at the controlling terminal. Where there is neither, the tool is refused.
"""

import asyncio
import json
import logging
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from tempfile import TemporaryFile
from typing import Any, Final

import mcp_types as types

from smcp_bus.audit import Event, Trail
from smcp_bus.callers import Caller
from smcp_bus.ownership import Seat
from smcp_computer.settings import Confirm, ConfirmPolicy
from smcp_computer.terminal import Terminal, TerminalGone
from smcp_computer.tool_names import ToolRef
from smcp_computer.tools import Target
from smcp_proto import tool_results
from smcp_proto.printable import printable, printable_json
from smcp_proto.schemas.tools import ToolCallReq

_log = logging.getLogger("smcp_computer.confirmation")

SETTING: Final = "SMCP_CONFIRM"
PROGRAM: Final = "SMCP_CONFIRM_COMMAND"


class Answer(StrEnum):
    YES = "yes"
    NO = "no"
    ALWAYS = "always"
    """Yes, and do not ask again about this tool while this Computer runs."""
    HOUR = "hour"
    """The same for an hour."""
    UNREADABLE = "unreadable"
    """The parameters are too many to be read, and nobody was asked."""


class ApprovalNeeded(Exception):
    """The Agent has to approve the call. The text is for its user."""


Asker = Callable[[Target, ToolCallReq, str | None], Awaitable[Answer]]
"""Asks somebody whether a tool may run; the text: the user for whom the Agent calls, if any. Cancelling withdraws the
request. Raises TerminalGone: nobody can be asked any more."""


def wanted(
    setting: Confirm, policy: ConfirmPolicy, *, auto_apply: bool | None, names: frozenset[str], destructive: bool
) -> tuple[Confirm, str]:
    """What the configuration says about a tool, and which part of it: the first rule that applies. `names`: its
    original name, and its alias. Pure."""
    rules = [
        (not names.isdisjoint(policy.deny), Confirm.DENY, "confirm.deny"),
        (auto_apply is False, Confirm.ASK, "auto_apply is false"),
        (not names.isdisjoint(policy.ask), Confirm.ASK, "confirm.ask"),
        (auto_apply is True, Confirm.ALLOW, "auto_apply is true"),
        (not names.isdisjoint(policy.allow), Confirm.ALLOW, "confirm.allow"),
        (destructive, policy.destructive, "confirm.destructive"),
        (True, policy.default, "confirm.default"),
    ]
    decided = ((confirm, why) for applies, confirm, why in rules if applies and confirm is not None)
    return next(decided, (setting, f"{SETTING}={setting}"))


def refused_by(confirm: Confirm, why: str, *, can_ask: bool) -> str | None:
    """Why the tool is not run, for the Agent; None where it is allowed, or somebody can be asked. Pure."""
    if confirm is Confirm.DENY:
        return f"is not allowed on this Computer ({why})"
    if confirm is Confirm.ALLOW or can_ask:
        return None
    return (
        f"needs the user's approval ({why}), and nobody can be asked on this Computer: there is neither a terminal "
        f"nor {PROGRAM}; see {SETTING}, and auto_apply in its tool_meta"
    )


def may_destroy(tool: types.Tool) -> bool:
    """What a server says of its tool, with MCP's defaults: a tool of which it says nothing may destroy something."""
    hints = tool.annotations
    return hints is None or (hints.read_only_hint is not True and hints.destructive_hint is not False)


def _is_destructive(tool: types.Tool) -> bool:
    return tool.annotations is not None and tool.annotations.destructive_hint is True


class Confirmation:
    """Decides by the configuration, or by asking, whether a tool may run. `setting`: `SMCP_CONFIRM`. `asker` None:
    nobody can be asked. `trail` gets a record of each answer. `where`: of the asking, for `policy`."""

    def __init__(
        self, setting: str | None, asker: Asker | None, seat: Seat, trail: Trail, where: str = "at this terminal"
    ) -> None:
        self._asker, self._seat, self._trail, self._where = asker, seat, trail, where
        self._turn = asyncio.Lock()
        self._by_agent = setting == "agent"
        self._is_default = setting is None
        default = Confirm.ASK if asker or self._by_agent else Confirm.ALLOW
        self.setting = default if setting is None or self._by_agent else Confirm(setting)
        self._remembered: dict[ToolRef, tuple[object, float]] = {}
        """Tools that may run without another approval: what was allowed, and until when (`time.monotonic`)."""
        self.answers: dict[str, float] = dict.fromkeys(Answer, 0)
        """Approval requests, by their answers."""

    @property
    def policy(self) -> str:
        """What becomes of "tool calls" of which the configuration says nothing, and why; for the user of this host."""
        given = f"{SETTING}={self.setting}"
        if self._by_agent:
            return f"need approval by the Agent's user ({SETTING}=agent)"
        if self.setting is Confirm.ALLOW:
            return f"run without approval ({f'no terminal is attached; see {SETTING}' if self._is_default else given})"
        if self.setting is Confirm.DENY or self._asker is None:
            return f"are refused ({given}{'' if self.setting is Confirm.DENY else ', and nobody can be asked'})"
        return f"need approval {self._where} ({f'{SETTING}=allow turns this off' if self._is_default else given})"

    async def refusal(
        self, target: Target, request: ToolCallReq, caller: Caller, trace_id: int, *, approved: bool | None = None
    ) -> str | None:
        """None where the tool may run, else why it may not. Asks for approval, one request at a time, if it has to.
        `approved`: the answer of the Agent, where it was asked. Raises ApprovalNeeded: the Agent has to approve it."""
        meta, tool = target.configured, target.ref.tool
        confirm, why = wanted(
            self.setting,
            target.host.confirm,
            auto_apply=meta.auto_apply if meta else None,
            names=frozenset((tool, meta.alias if meta and meta.alias else tool)),
            destructive=may_destroy(target.tool),
        )
        by_agent = self._by_agent and not caller.local  # the user of this host is asked in place of an Agent's
        refusal = refused_by(confirm, why, can_ask=by_agent or self._asker is not None)
        if refusal is not None or confirm is Confirm.ALLOW or self._is_remembered(target):
            return refusal  # no approval: an Agent can provoke any number, and real ones would be lost
        user = caller.rights.holder if caller.rights is not None and caller.rights.delegate else None
        if by_agent:
            if approved is not None:
                answer = Answer.YES if approved else Answer.NO
            elif len(text := approval_text(target.ref, request.agent, request.params, user)) <= LONGEST:
                raise ApprovalNeeded(f"{text}. Run it?")
            else:
                answer = Answer.UNREADABLE
            return await self._recorded(answer, request, caller, trace_id, "the Agent's user")
        assert self._asker is not None  # else `refused_by` says so
        async with self._turn:
            if self._is_remembered(target):  # since the call before this one
                return None
            try:
                answer = await self._asker(target, request, user)
            except TerminalGone:
                return "was not run: this Computer is stopping, or its terminal was closed, before anybody approved it"
            refusal = await self._recorded(answer, request, caller, trace_id, "the user of this Computer")
            if refusal is None and answer in (Answer.ALWAYS, Answer.HOUR):
                until = time.monotonic() + 3600 if answer is Answer.HOUR else float("inf")
                self._remembered[target.ref] = (_allowed(target), until)
            return refusal

    async def _recorded(
        self, answer: Answer, request: ToolCallReq, caller: Caller, trace_id: int, who: str
    ) -> str | None:
        """None where the tool may run after this answer, else why it may not."""
        self.answers[answer] += 1
        written = self._trail.write(approval_event(answer, request, caller, self._seat, trace_id))
        if answer is Answer.UNREADABLE:
            return f"needs approval, and its parameters are too many to be read: above {LONGEST} characters"
        if answer is Answer.NO:
            return f"was declined by {who}"
        if written is not None and not await written:
            return "was not run: its approval cannot be recorded (SMCP_AUDIT=required)"
        return None

    def _is_remembered(self, target: Target) -> bool:
        allowed, until = self._remembered.get(target.ref, (None, 0.0))
        return time.monotonic() < until and allowed == _allowed(target)


def approval_event(answer: str, request: ToolCallReq, caller: Caller, seat: Seat, trace_id: int) -> Event:
    """The record of an answer."""
    rights = caller.rights
    return Event(
        "approval",
        answer,
        office=seat.office,
        subject=(caller.subject or None) if rights is None else rights.holder,
        by=None if rights is None else rights.delegate or None,
        role="agent",
        name=request.agent,
        computer=seat.computer,
        tool=request.tool_name,
        req_id=request.req_id,
        trace_id=trace_id,
        arguments=request.params,
    )


def not_confirmed(tool: str, seconds: float) -> dict[str, Any]:
    """The result of a call whose time was up before its approval request was answered."""
    within = tool_results.asked_for(seconds)
    text = f"the tool {tool!r} was not run: the user of this Computer did not approve it within {within}"
    return tool_results.failed(text, a2c_timeout=True, a2c_not_confirmed=True)


def _allowed(target: Target) -> object:
    """What an answer is about: a server that is started otherwise, or describes its tool otherwise, is asked about
    again."""
    return target.supervisor.config.server_parameters, target.tool


LONGEST_VALUE: Final = 120
"""Characters of a text that are shown; longer ones are cut in the middle."""
LONGEST: Final = 8_000
"""Characters of all parameters that a user can be expected to read. What is longer is refused, and not cut: what is cut
away would be approved unseen."""
_REFUSALS: Final = {"n": Answer.NO, "no": Answer.NO, "": Answer.NO}
_WORDS: Final = {"y": Answer.YES, "yes": Answer.YES, "always": Answer.ALWAYS, "hour": Answer.HOUR, **_REFUSALS}
_PROMPT: Final = "Run it? [y/N, 'always' for this tool, 'hour' for an hour] "


async def ask_at_terminal(terminal: Terminal, target: Target, request: ToolCallReq, user: str | None) -> Answer:
    """Ask the user of this host."""
    text, prompt, words = approval_text(target.ref, request.agent, request.params, user), _PROMPT, _WORDS
    if len(text) > LONGEST:
        return Answer.UNREADABLE
    if _is_destructive(target.tool):  # not by one key
        tool = printable(target.ref.tool)
        prompt = f"It may destroy something. Type {tool!r} to run it [or 'always {tool}', 'hour {tool}'; Enter: no] "
        name = tool.casefold()
        words = {name: Answer.YES, f"always {name}": Answer.ALWAYS, f"hour {name}": Answer.HOUR, **_REFUSALS}
    async with terminal.turn:
        return await terminal.ask(text, prompt, words)


async def ask_program(command: Sequence[str], target: Target, request: ToolCallReq, user: str | None) -> Answer:
    """Run a program, without a shell.

    It gets `{"server", "tool", "agent", "user", "params", "destructive"}` as JSON at its standard input. Exit status 0
    is a yes, another a no.
    """
    tool = {"server": target.ref.server, "tool": target.ref.tool, "destructive": _is_destructive(target.tool)}
    asked = {**tool, "agent": request.agent, "user": user, "params": request.params}
    with TemporaryFile() as question:  # no pipe: a program may end before it has read all, or anything
        question.write(json.dumps(asked).encode())
        question.seek(0)
        try:
            program = await asyncio.create_subprocess_exec(*command, stdin=question, stdout=DEVNULL)
        except OSError as error:
            _log.warning("%s: cannot be started, so no call is approved: %s", PROGRAM, error.strerror)
            return Answer.NO
    try:
        status = await program.wait()
    finally:
        if program.returncode is None:
            with suppress(ProcessLookupError):
                program.kill()
            await program.wait()
    return Answer.YES if status == 0 else Answer.NO


def approval_text(ref: ToolRef, agent: str, params: Mapping[str, Any], user: str | None = None) -> str:
    """What is shown: each parameter, at any depth, with its name. The Agent's text cannot move the cursor or colour
    anything."""
    shown = printable_json(_cut(params), indent=None)
    who = f"The Agent {printable(agent)!r}" if user is None else f"The user {printable(user)!r}"
    return f"{who} wants to run {printable(ref.tool)!r} of {printable(ref.server)!r} with {shown}"


def _cut(value: Any) -> Any:
    match value:
        case dict():
            return {name: _cut(inner) for name, inner in value.items()}
        case list():
            return [_cut(inner) for inner in value]
        case str() if len(value) > LONGEST_VALUE:
            half = LONGEST_VALUE // 2
            return f"{value[:half]}… ({len(value)} characters) …{value[-half:]}"
    return value
