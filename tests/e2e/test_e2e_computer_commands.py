"""The commands of `smcp-computer` at a running one, all as processes: what its user does with it over a day.

The Computers are started as they are installed; the commands that ask them are forked.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smcp_testing.computer_office import registry
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.mcp_servers import configs
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

COMMAND = str(Path(sys.executable).with_name("smcp-computer"))
PLACE = ("--office", "lab", "--name", "pc")
PATIENCE_S = 60.0
Json = dict[str, Any]


class Host:
    """A host with its state directory and its configuration file."""

    def __init__(self, nats_url: str, directory: Path, state: str) -> None:
        self.file = directory / "computer.json"
        self.state = state
        self._environ = {**os.environ, "XDG_STATE_HOME": state, "SMCP_NATS_URL": nats_url, "SMCP_HEALTH_PORT": "0"}

    async def start(
        self, *arguments: str, stdout: int | None = None, stderr: int | None = None
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            COMMAND, *arguments, env=self._environ, stdout=stdout, stderr=stderr
        )

    async def run(self, *arguments: str) -> tuple[int | None, str, str]:
        command = born(COMMAND, *arguments, knows=COMMANDS)
        process = await asyncio.create_subprocess_exec(*command, env=self._environ, stdout=PIPE, stderr=PIPE)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert b"Traceback" not in err
        return process.returncode, out.decode(), err.decode()

    async def says(self, *arguments: str) -> Any:
        """What a command says as JSON."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        code, out, err = await self.run(*arguments[:at], "--json", *arguments[at:])
        assert code == 0, err
        return json.loads(out)

    async def servers(self) -> dict[str, Json]:
        return {each["name"]: each for each in (await self.says("status"))["servers"]}

    async def is_in(self, state: str, server: str) -> bool:
        """Whether the server is in that state. A command returns after 10 s while the server that it starts starts."""
        return bool((await self.servers())[server]["state"] == state)

    async def is_ready(self) -> bool:
        code, out, _ = await self.run("status", "--json")
        return code == 0 and json.loads(out)["ready"] is True

    @asynccontextmanager
    async def computer(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """It runs, is ready, and answers commands."""
        process = await self.start("run", "--config", str(self.file), *PLACE, stderr=asyncio.subprocess.DEVNULL)
        try:
            await eventually(self.is_ready, timeout=PATIENCE_S)
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE_S)


@asynccontextmanager
async def host(nats_url: str, directory: Path, **servers: Json) -> AsyncIterator[Host]:
    with TemporaryDirectory(prefix="s-") as state:  # short, since a socket's path is
        here = Host(nats_url, directory, state)
        here.file.write_text(json.dumps({"servers": servers}))
        async with registry(nats_url):
            yield here


async def test_servers_are_added_disabled_enabled_and_removed_while_the_computer_runs(
    nats_url: str, tmp_path: Path
) -> None:
    box = configs.stdio(fresh=True)
    program = box["server_parameters"]
    async with host(nats_url, tmp_path, box=box) as here, here.computer():
        before = (await here.servers())["box"]
        command = ("--", program["command"], *program["args"])
        added = await here.says("servers", "add", "extra", *command)
        assert [each["name"] for each in added["servers"]] == ["box", "extra"]
        await eventually(partial(here.is_in, "ready", "extra"), timeout=PATIENCE_S)
        assert "extra" in json.loads(here.file.read_text())["servers"]
        code, _, err = await here.run("servers", "add", "extra", *command)
        assert (code, "--replace" in err) == (1, True)
        code, _, err = await here.run("servers", "rm", "extr")
        assert (code, "did you mean 'extra'" in err) == (1, True)
        await here.says("servers", "disable", "extra")
        assert (await here.servers())["extra"]["state"] == "disabled"
        await here.says("servers", "enable", "extra")
        await eventually(partial(here.is_in, "ready", "extra"), timeout=PATIENCE_S)
        await here.says("servers", "rm", "extra")
        now = await here.servers()
        assert list(now) == ["box"]
        assert (now["box"]["pid"], now["box"]["restarts"]) == (before["pid"], 0), "the others were left alone"


async def test_what_a_server_writes_is_shown_and_followed(nats_url: str, tmp_path: Path) -> None:
    box = configs.stdio(fresh=True)
    program = box["server_parameters"]
    script = 'echo "no paper" >&2; exec "$0" "$@"'
    program |= {"command": "sh", "args": ["-c", script, program["command"], *program["args"]]}
    async with host(nats_url, tmp_path, box=box) as here:
        async with here.computer():
            assert "no paper" in (await here.run("logs", "box"))[1]
            code, _, err = await here.run("logs", "bxo")
            assert (code, "no log of an MCP server 'bxo'" in err) == (1, True)
            following = await here.start("logs", "box", "-f", "-n", "0", stdout=PIPE)
            try:
                assert following.stdout is not None
                reading = asyncio.create_task(following.stdout.readuntil(b"no paper"))
                while not reading.done():  # it may have begun to follow only after the first restart
                    await here.says("servers", "restart", "box")
                    await asyncio.wait([reading], timeout=1)
                await reading
                following.send_signal(signal.SIGINT)
                assert await asyncio.wait_for(following.wait(), PATIENCE_S) == 0
            finally:
                if following.returncode is None:
                    following.kill()


async def test_a_computer_that_was_killed_leaves_no_socket_that_the_next_one_stumbles_over(
    nats_url: str, tmp_path: Path
) -> None:
    async with host(nats_url, tmp_path) as here:
        async with here.computer() as first:
            first.send_signal(signal.SIGKILL)
            await first.wait()
            code, _, err = await here.run("status")
            assert (code, "no Computer of this user runs here" in err) == (1, True)
        async with here.computer() as second:
            assert (await here.says("status"))["pid"] == second.pid
            assert "No MCP servers" in (await here.run("status"))[2]


async def test_the_log_says_that_a_program_confirms_and_that_program_decides(nats_url: str, tmp_path: Path) -> None:
    script, seen = tmp_path / "confirm.py", tmp_path / "seen"
    script.write_text(
        "import json, sys\n"
        "asked = json.load(sys.stdin)\n"
        f"open({str(seen)!r}, 'a').write(asked['tool'] + ' ' + asked['agent'] + '\\n')\n"
        "sys.exit(asked['params']['b'] != 2)\n"
    )
    async with host(nats_url, tmp_path, box=configs.stdio(fresh=True)) as here:
        env = {
            "SMCP_CONFIRM_COMMAND": f"{sys.executable} {script}", "SMCP_LOG_FORMAT": "json",
            "XDG_STATE_HOME": here.state, "SMCP_NATS_URL": nats_url, "SMCP_HEALTH_PORT": "0",
        }  # fmt: skip
        async with service_process(COMMAND, "run", "--config", here.file, *PLACE, env=env) as computer:
            policy = "need approval by the program of SMCP_CONFIRM_COMMAND (SMCP_CONFIRM=allow turns this off)"
            await computer.logged(f"tool calls {policy}, unless the configuration says otherwise", timeout=PATIENCE_S)
            await eventually(here.is_ready, timeout=PATIENCE_S)
            code, out, _ = await here.run("call", "add", "--params", '{"a": 1, "b": 2}')
            assert (code, out) == (0, "3\n")
            code, out, _ = await here.run("call", "add", "--params", '{"a": 1, "b": 3}')
            assert (code, "was declined by the user of this Computer" in out) == (1, True)
            assert seen.read_text() == "add user of this host\n" * 2


async def test_smcp_up_names_unknown_tools_and_answers_commands_beside_another_computer(
    nats_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "up.json"
    box = configs.stdio(fresh=True, forbidden_tools=["ecko"])
    file.write_text(json.dumps({"servers": {"box": box}}))
    async with host(nats_url, tmp_path) as here, here.computer():
        up = (Path(COMMAND).with_name("smcp"), "up", "--port", "0", "--config", file)
        async with service_process(*up, env={"SMCP_LOG_FORMAT": "json", "XDG_STATE_HOME": here.state}) as process:
            await eventually(lambda: "ctrl-C stops everything." in process.output, timeout=PATIENCE_S)
            warning = "box: forbidden_tools: 'ecko': did you mean 'echo'? It is not a tool of this server"
            assert f"  Warning            {warning}" in process.output
            (policy,) = [line for line in process.output if line.startswith("  Tool calls")]
            assert "run without approval (no terminal is attached; see SMCP_CONFIRM)" in policy
            code, _, err = await here.run("status")
            assert code == 1
            assert "--office home --name computer" in err
            assert "--office lab --name pc" in err
            (server,) = (await here.says("status", "--name", "computer"))["servers"]
            assert (server["name"], server["state"]) == ("box", "ready")


async def test_status_says_what_a_computer_that_stops_waits_for_and_nothing_new_begins(
    nats_url: str, tmp_path: Path
) -> None:
    log, may_end = tmp_path / "log", tmp_path / "may-end"
    async with (
        host(nats_url, tmp_path, box=configs.stdio(log=log, fresh=True)) as here,
        here.computer() as process,
    ):
        called = asyncio.create_task(here.run("call", "sleep", "seconds=60", f"until={may_end}"))
        await eventually(log.exists, timeout=PATIENCE_S)
        process.terminate()

        async def stops() -> bool:
            return bool((await here.says("status"))["stopping"])

        await eventually(stops, timeout=PATIENCE_S)
        assert (await here.says("status"))["problems"] == {"office": "left", "process": "stopping"}
        assert (await here.run("status"))[1].startswith("pc in lab: stopping, 1 call running, ")
        code, _, err = await here.run("servers", "restart", "box")
        assert (code, "the Computer is stopping" in err) == (1, True)
        may_end.touch()
        assert (await called)[:2] == (0, "slept 60.0\n")
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
