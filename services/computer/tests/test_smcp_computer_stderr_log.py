"""The log of MCP servers that write too much or die again and again."""

import asyncio
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import uvloop

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.errors import ServerFailed
from smcp_computer.mcp.server_log import FILE_BYTES, LINES_A_MINUTE, MAX_LINE, StderrLog, log_file
from smcp_computer.mcp.stdio import parsed
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.mcp.transports import Limits
from smcp_proto.backoff import Backoff
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually


@asynccontextmanager
async def supervised(server: dict[str, Any]) -> AsyncIterator[Supervisor]:
    config = parse_config(json.dumps({"servers": {"box": server}})).servers["box"]
    with patch("smcp_computer.mcp.supervisor.Backoff", lambda: Backoff(first_s=0.05, longest_s=0.1)):
        supervisor = Supervisor(config, InputResolver({}, {}), limits=Limits(), on_change=lambda: None)
    async with background() as tasks:
        task = tasks.start(supervisor.run(), name="owner")
        try:
            yield supervisor
        finally:
            supervisor.stop()
            await asyncio.wait_for(task, 30)


def shown(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """Lines of the log that a user sees, but for those of the SDK."""
    return [r.getMessage() for r in caplog.records if r.levelno >= level and r.name.startswith("smcp_computer")]


async def test_a_server_that_never_starts_is_logged_once_below_what_it_wrote(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    starts = tmp_path / "starts"
    program = (
        f"import os, sys; open({str(starts)!r}, 'a').write('x');"
        " print('no licence,', os.getpid(), file=sys.stderr); sys.exit(3)"
    )
    broken = {"type": "stdio", "server_parameters": {"command": sys.executable, "args": ["-c", program]}}
    async with supervised(broken):
        # two of the starts are one try: a server that ends at the first question is asked the older way
        await eventually(lambda: starts.exists() and len(starts.read_text()) >= 6, timeout=60)
    warnings = [line for line in shown(caplog, logging.WARNING) if "'box'" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "MCP server 'box': its process ended with status 3 before it answered; it is started again in 0."
    )
    own = [line for line in shown(caplog) if line.startswith("no licence")]
    assert 1 <= len(own) <= 3  # of its first lives; later ones are logged at debug


def test_what_a_server_writes_is_shown_after_it_was_ready_and_not_after_a_start_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = StderrLog("box")
    for number, was_ready in enumerate((True, False)):
        log.failed(ServerFailed("went away"), "it is started again", was_ready=was_ready)
        log.process_started()
        log.wrote(f"log in at https://login.example/{number}")
    log.ready(1)
    log.wrote("logged in")
    assert [line for line in shown(caplog) if "'box'" not in line] == [
        "log in at https://login.example/0", "logged in"
    ]  # fmt: skip


async def test_a_missing_command_is_logged_once_and_starts_when_installed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    command = tmp_path / "server"
    server = configs.stdio()
    parameters = server["server_parameters"]
    installed = shlex.join([parameters["command"], *parameters["args"]])
    async with supervised({**server, "server_parameters": {"command": str(command)}}) as box:
        await eventually(lambda: box._backoff._step >= 0.1, timeout=30)  # of the second try, at least
        (line,) = shown(caplog)
        assert f"its command '{command}' does not exist; it is started again in 0." in line
        command.write_text(f"#!/bin/sh\nexec {installed}\n")
        command.chmod(0o755)
        await eventually(lambda: box.ready, timeout=30)
    assert len([line for line in shown(caplog) if "does not exist" in line]) == 1


def test_a_program_that_ends_at_once_is_logged_with_its_status(caplog: pytest.LogCaptureFixture) -> None:
    """On the loop that services run on, which has an error of its own for a pipe that is closed."""
    caplog.set_level(logging.WARNING)

    async def failing() -> None:
        async with supervised({"type": "stdio", "server_parameters": {"command": "false"}}) as box:
            await eventually(lambda: box._backoff._step >= 0.1, timeout=30)  # of the second try, at least
            assert box.reason == "its process ended with status 1 before it answered"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(failing())
    (line,) = shown(caplog, logging.WARNING)
    assert line.startswith(
        "MCP server 'box': its process ended with status 1 before it answered (it said last: nothing); it is started"
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("true", "its process ended with status 0 before it answered: it does not serve MCP over stdio"),
        ("true --help", "its command 'true --help' does not exist; write its arguments into args"),
    ],
)
async def test_a_command_that_starts_no_mcp_server_is_told_what_it_lacks(command: str, reason: str) -> None:
    async with supervised({"type": "stdio", "server_parameters": {"command": command}}) as box:
        await eventually(lambda: box.reason == reason, timeout=30)


def test_the_last_lines_are_those_of_the_current_process(caplog: pytest.LogCaptureFixture) -> None:
    log = StderrLog("box")
    log.process_started()
    log.wrote("of an older life")
    log.process_started()
    for line in (
        "╭──── Traceback ────╮",
        "│ \x1b[31mmain.py\x1b[0m:7 \x07 │",
        "╰───────────────────╯",
        "",
        "ValueError: no\tdisk",
    ):
        log.wrote(line)
    log.status = 2
    log.failed(ServerFailed("went away"), "it is started again", was_ready=True)
    why = "its process ended with status 2; it said last: Traceback | main.py:7 � | ValueError: no disk"
    assert shown(caplog, logging.WARNING) == [f"MCP server 'box': went away ({why}); it is started again"]


def test_the_file_of_a_server_has_all_its_lines_without_what_a_terminal_obeys_and_is_bounded(tmp_path: Path) -> None:
    name = "数据/../" + 40 * "库"
    log = StderrLog(name, tmp_path / "logs", clean=lambda line: line.replace("secret", "***"))
    log.process_started()
    for number in range(3 * LINES_A_MINUTE):
        log.wrote(f"\x1b]52;c;eA==\x07\x1b[31mline {number}\x1b[0m of secret")
    path = log_file(tmp_path / "logs", name)
    lines = path.read_text().splitlines()
    assert len(lines) == 3 * LINES_A_MINUTE
    assert lines[7].endswith("Z line 7 of ***")
    for _ in range(3 * FILE_BYTES // 1000):
        log.wrote("x" * 1000)
    log.close()
    kept = sorted(path.parent.iterdir())
    assert kept == [path, path.with_name(f"{path.name}.1")]
    assert all(0 < each.stat().st_size <= FILE_BYTES for each in kept)
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_what_a_server_writes_to_stdout_in_place_of_messages_is_in_its_file_without_secrets_and_once_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = StderrLog("box", tmp_path, clean=lambda line: line.replace("secret", "***"))
    for _ in range(2 * LINES_A_MINUTE):
        assert parsed("\x1b[31mWelcome, secret", log, 1000) is None
    log.close()
    lines = log_file(tmp_path, "box").read_text().splitlines()
    assert len(lines) == LINES_A_MINUTE
    assert lines[0].endswith(r"Z it wrote a line to stdout that is not an MCP message: '\x1b[31mWelcome, ***'")
    assert len([each for each in caplog.messages if "is not an MCP message" in each]) == 1


async def test_each_end_of_a_running_server_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with supervised(configs.stdio()) as box:
        for _ in range(2):
            await eventually(lambda: box.ready, timeout=30)
            os.kill(await _pid(box), signal.SIGKILL)
            await eventually(lambda: not box.ready)
        await eventually(lambda: box.ready and box.starts == 3, timeout=30)
    ends = [line for line in shown(caplog) if "ended with status -9" in line]
    assert len(ends) == 2
    assert all("it is started again in 0." in line for line in ends)
    assert len([line for line in shown(caplog) if "went away" in line]) == 2


async def test_endless_output_of_a_server_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    program = "import sys, time\nfor n in range(1000): print('chatter', n, file=sys.stderr)\ntime.sleep(600)"
    server = {"type": "stdio", "server_parameters": {"command": sys.executable, "args": ["-c", program]}}
    async with supervised(server):
        await eventually(lambda: "chatter 999" in [r.getMessage() for r in caplog.records], timeout=30)
    lines = shown(caplog)
    shown_lines = [line for line in lines if line.startswith("chatter")]
    assert LINES_A_MINUTE <= len(shown_lines) < 2 * LINES_A_MINUTE
    assert len([line for line in lines if "more lines than are shown" in line]) == 1


async def test_a_secret_at_the_end_of_what_is_shown_of_a_long_line_is_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    program = (
        "import os, sys, time\n"
        "print('said', 'x' * 1980, os.environ['KEY'], 'y' * 100_000, file=sys.stderr, flush=True)\ntime.sleep(600)"
    )
    env = {"KEY": "canary-" + 100 * "7"}
    parameters = {"command": sys.executable, "args": ["-c", program], "env": env}
    server = {"type": "stdio", "server_parameters": parameters}
    async with supervised(server):
        await eventually(lambda: any(line.startswith("said") for line in shown(caplog)), timeout=30)
    (line,) = [line for line in shown(caplog) if line.startswith("said")]
    assert len(line) == MAX_LINE
    assert "canary" not in line


async def test_an_answer_to_the_handshake_that_is_not_valid_is_told_without_a_part_of_a_secret_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "canary-" + 100 * "7"
    answer = {"protocolVersion": "2025-06-18", "capabilities": secret, "serverInfo": {"name": "s", "version": "1"}}
    text = json.dumps({"jsonrpc": "2.0", "id": "$ID", "result": answer}).replace('"$ID"', "$ID")
    (tmp_path / "answers").write_text(json.dumps({"initialize": text}))
    server = configs.stdio("scripted", "--answers", str(tmp_path / "answers"), env={"KEY": secret})
    async with supervised(server) as box:
        await eventually(lambda: box.reason)
        assert box.reason == "sent an answer that is not valid: capabilities: must be an object"
    assert any(box.reason in line for line in shown(caplog))
    assert "canary" not in caplog.text


async def _pid(box: Supervisor) -> int:
    result = await box.call("pid", {}, timeout=20.0)
    return int(result["content"][0]["text"])


async def test_all_that_a_program_wrote_before_it_ended_is_read_before_its_failure_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    program = "import sys; sys.stderr.write('line\\n' * 900 + 'the last words\\n'); sys.exit(3)"
    broken = {"type": "stdio", "server_parameters": {"command": sys.executable, "args": ["-c", program]}}
    async with supervised(broken) as box:
        await eventually(lambda: box.reason, timeout=30)
    told = caplog.messages
    failure = next(index for index, line in enumerate(told) if "ended with status 3" in line)
    # it runs twice: one that ends at the first question is asked the older way
    assert told[:failure].count("the last words") == 2
