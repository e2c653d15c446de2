"""`smcp-agent` as a process, against a `FakeGateway`."""

import asyncio
import os
import pty
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from smcp_testing.fake_gateway import FakeGateway
from smcp_testing.fork_server import COMMANDS, born

COMMAND: Final = Path(sys.executable).with_name("smcp-agent")
PATIENCE_S: Final = 60.0

Ended = tuple[int | None, bytes, str]
"""Exit code, standard output, standard error."""


async def start(
    gateway: FakeGateway,
    *arguments: str,
    stdin: int | None = None,
    stdout: int = PIPE,
    stderr: int = PIPE,
    columns: int = 120,
    forked: bool = False,
    completing: Sequence[str] = (),
) -> Any:
    """Args:
    completing: a shell completes the last of these words.
    forked: see `fork_server`; in less time, for what gets no signals and prints where it can.
    """
    of_tests = {"SMCP_URL": gateway.url, "SMCP_OFFICE": "office", "COLUMNS": str(columns), "TERM": "xterm"}
    environment = {**os.environ, **of_tests}
    if completing:
        at, words = str(len(completing) - 1), " ".join(completing)
        environment |= {"_SMCP_AGENT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": at}
    command = born(COMMAND, *arguments, knows=COMMANDS) if forked else [str(COMMAND), *arguments]
    return await asyncio.create_subprocess_exec(*command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)


async def ended(process: Any) -> Ended:
    """Wait for its end; no traceback was printed."""
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    said = (err or b"").decode()
    assert "Traceback" not in said
    return process.returncode, out or b"", said


async def run(gateway: FakeGateway, *arguments: str) -> Ended:
    return await ended(await start(gateway, *arguments, forked=True))


async def at_a_terminal(gateway: FakeGateway, *arguments: str, columns: int = 120) -> Ended:
    """As `run`, where standard output is a terminal; it may print some kilobytes."""
    ours, theirs = pty.openpty()
    try:
        process = await start(gateway, *arguments, stdout=theirs, columns=columns, forked=True)
        os.close(theirs)
        code, _, err = await ended(process)
        try:
            shown = os.read(ours, 65536)
        except OSError:  # Linux says so where nothing was written and the other end is closed
            shown = b""
        return code, shown, err
    finally:
        os.close(ours)


async def line(stream: Any) -> str:
    """The next line of its standard output or error."""
    async with asyncio.timeout(PATIENCE_S):
        said: bytes = await stream.readline()
    return said.decode()
