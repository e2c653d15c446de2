"""Confirmation of tool calls: the rules, and the question at the controlling terminal.

The setting `confirm` is `ask`, `allow` or `deny`; unset it is `ask` at a terminal and `allow` where none is attached. A
tool with `auto_apply: true` never asks; with `false` it always asks, and is refused where nobody can be asked; without,
the setting decides.
"""

import asyncio
import json
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Final, Protocol

from smcp_computer.terminal import YES_OR_NO, Terminal, TerminalGone, printable
from smcp_computer.tools import ToolRef

SETTING: Final = "SMCP_CONFIRM"
_STOPPING: Final = "was not run: this Computer is stopping, and asks nobody any more"


class Confirm(StrEnum):
    """The setting `SMCP_CONFIRM`: what becomes of a tool whose `auto_apply` is null."""

    ASK = "ask"
    ALLOW = "allow"
    DENY = "deny"


class Asker(Protocol):
    """Somebody who can be asked whether a tool may run. Cancelling withdraws the question."""

    async def ask(self, ref: ToolRef, agent: str, params: Mapping[str, Any]) -> bool: ...


class Decision(Enum):
    """What becomes of a call that is not refused."""

    RUN = "run"
    ASK = "ask"


def decide(setting: Confirm, auto_apply: bool | None, *, can_ask: bool) -> Decision | str:
    """What the settings say; a text is why the tool is not run, for the Agent. Pure."""
    if auto_apply is True or (auto_apply is None and setting is Confirm.ALLOW):
        return Decision.RUN
    if auto_apply is None and setting is Confirm.DENY:
        return f"is not allowed on this Computer ({SETTING}={setting})"
    if can_ask:
        return Decision.ASK
    reason = "auto_apply is false" if auto_apply is False else f"{SETTING}={setting}"
    return (
        f"needs the user's confirmation ({reason}), and nobody can be asked on this Computer; "
        f"see {SETTING}, and auto_apply in its tool_meta"
    )


class Confirmation:
    """Whether a tool may run: decided by the setting, or by the user. `asker` None: nobody can be asked."""

    def __init__(self, setting: Confirm | None, asker: Asker | None) -> None:
        self._asker = asker
        self.setting = setting or (Confirm.ASK if asker is not None else Confirm.ALLOW)
        self._one_at_a_time = asyncio.Lock()
        self._questions: set[asyncio.Timeout] = set()
        self._over = False

    def ask_no_more(self) -> None:
        """Withdraw and refuse open questions, and refuse what would still be asked: the Computer stops."""
        self._over = True
        for each in self._questions:
            each.reschedule(asyncio.get_running_loop().time())

    async def refusal(
        self, ref: ToolRef, *, agent: str, auto_apply: bool | None, params: Mapping[str, Any]
    ) -> str | None:
        """None where the tool may run, else why it may not. Asks, one question at a time, if it has to."""
        decision = decide(self.setting, auto_apply, can_ask=self._asker is not None)
        if decision is Decision.RUN:
            return None
        if self._asker is None or isinstance(decision, str):
            return str(decision)
        if self._over:
            return _STOPPING
        question = asyncio.timeout(None)
        try:
            async with question:
                self._questions.add(question)
                async with self._one_at_a_time:
                    allowed = await self._asker.ask(ref, agent, params)
        except TimeoutError:
            if not question.expired():
                raise
            return _STOPPING
        finally:
            self._questions.discard(question)
        return None if allowed else "was declined by the user of this Computer"


LONGEST: Final = 600
"""Characters of the parameters that are shown."""


class AtTerminal:
    """Asks the user of this host."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    async def ask(self, ref: ToolRef, agent: str, params: Mapping[str, Any]) -> bool:
        try:
            return await self._terminal.ask(question(ref, agent, params), "Run it? [y/N] ", YES_OR_NO)
        except TerminalGone:
            return False


def question(ref: ToolRef, agent: str, params: Mapping[str, Any]) -> str:
    """What is shown. The Agent's text cannot move the cursor or colour anything."""
    shown = printable(json.dumps(params, ensure_ascii=False))
    if len(shown) > LONGEST:
        shown = f"{shown[:LONGEST]}… ({len(shown)} characters)"
    return (
        f"The Agent {printable(agent)!r} wants to run {printable(ref.tool)!r} of {printable(ref.server)!r} with {shown}"
    )
