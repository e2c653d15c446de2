"""`smcp demo`: an Agent calls two public MCP servers, and every call returns although its gateway is killed."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import typer

from smcp_agent import CallResult, SmcpAgent, SmcpError
from smcp_bus.bus import raise_if_cancelled
from smcp_computer.settings import Confirm
from smcp_proto.printable import printable
from smcp_service.lifecycle import FAILED, Failure
from smcp_standalone import die_with_parent
from smcp_standalone.app import System, open_system
from smcp_standalone.nats_server import find_command
from smcp_standalone.settings import GATEWAY, UpOptions, UpSettings, load_up_settings, uvx_server, with_key

OFFICE: Final = "demo office"
COMPUTER: Final = "demo computer"
FIRST_START_S: Final = 300.0
"""How long an MCP server may take to be downloaded and started."""
CALL_S: Final = 60
"""Longer than the Agent takes to find the other gateway."""
WHEN: Final = {"source_timezone": "Asia/Shanghai", "time": "16:30", "target_timezone": "Europe/Berlin"}
CALLERS: Final = 8
BEFORE_S: Final = 6.0
"""How long calls are made before the gateway is killed: a Computer repeats only what was sent after its first 5 s."""


def find_repository(start: Path) -> Path:
    for directory in (start, *start.parents):
        if (directory / ".git").exists():
            return directory
    raise Failure(f"--repository: {start} is in no git repository: run this in a clone, or name another repository")


async def until_stopped(stop: asyncio.Event, demonstration: Coroutine[Any, Any, None]) -> int:
    """The exit code of the process."""
    work = asyncio.create_task(demonstration)
    stopping = asyncio.create_task(stop.wait())
    stopping.add_done_callback(lambda _: work.cancel())
    try:
        await work
    except asyncio.CancelledError:
        typer.echo("stopped before its end", err=True)
        return FAILED
    finally:
        stopping.cancel()
    return 0


async def demo(repository: Path, directory: Path) -> None:
    chosen = UpOptions(office=OFFICE, name=COMPUTER, port=0, config=_config(directory, repository), mcp=False)
    settings = with_key(_patient(load_up_settings(chosen, directory)), directory)
    async with AsyncExitStack() as stack:
        typer.echo("Starting; the first time, uvx downloads mcp-server-git and mcp-server-time ...")
        system = await stack.enter_async_context(open_system(chosen, settings, directory))
        raise_if_cancelled()
        if system.failed:
            raise Failure(f"did not start: {', '.join(system.failed)} (see above)")
        first, process = await stack.enter_async_context(_gateway(system, settings))
        raise_if_cancelled()
        typer.echo(
            f"nats-server, a registry, the gateways {first} and {system.url}, and a Computer with two MCP servers run. "
            f"An Agent joins {OFFICE!r} and calls their tools.\n"
        )
        try:
            async with SmcpAgent([first, system.url], office=OFFICE, name="demo agent", token=settings.key) as agent:
                await _call(agent, "git_log", {"repo_path": str(repository), "max_count": 3})
                await _call(agent, "convert_time", WHEN)
                await _lose_a_gateway(agent, first, process)
        except SmcpError as error:
            raise Failure(f"{error.message} ({int(error.code)})") from error
    typer.echo("Everything has been stopped. Your own turn: smcp up")


@asynccontextmanager
async def _gateway(system: System, settings: UpSettings) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A gateway as a process of its own, beside the one of `system`: its URL and the process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_AUTH_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", die_with_parent.__file__, str(os.getpid()), find_command("smcp-gateway") or ""),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={
            **kept,
            "SMCP_NATS_URL": system.nats.url,
            "SMCP_NATS_CREDS": str(system.nats.credentials[GATEWAY]),
            "SMCP_AUTH_KEYS": str(settings.gateway.auth_keys),
            "SMCP_GATEWAY_HOST": "127.0.0.1",
            "SMCP_GATEWAY_PORT": "0",
            "SMCP_HEALTH_PORT": "0",
            "SMCP_LOG_FORMAT": "json",
            "SMCP_LOG_LEVEL": "info",
        },
    )
    assert process.stderr is not None
    reading = None
    try:
        url = None
        while url is None and (line := await process.stderr.readline()):
            entry = json.loads(line) if line.startswith(b"{") else {}
            url = entry.get("url") if entry.get("event") == "ready" else None
        if url is None:
            raise Failure("the second gateway did not start")
        reading = asyncio.create_task(process.communicate())  # or it could write no more log
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
        await (process.wait() if reading is None else reading)


async def _lose_a_gateway(agent: SmcpAgent, url: str, gateway: asyncio.subprocess.Process) -> None:
    """Kill the Agent's gateway while calls are in flight, and print what became of them."""
    loop = asyncio.get_running_loop()
    calls: list[tuple[float, float]] = []
    killed = loop.time() + BEFORE_S

    async def call_again_and_again() -> None:
        ended = 0.0
        while ended <= killed + 1:
            began = loop.time()
            result = await agent.call_tool(COMPUTER, "convert_time", WHEN, timeout=CALL_S)
            if result.is_error:
                raise Failure(f"convert_time failed: {result.text}")
            ended = loop.time()
            calls.append((began, ended))

    typer.echo(f"{CALLERS} callers now make one call after another ...")
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(call_again_and_again())
            await asyncio.sleep(BEFORE_S)
            killed = loop.time()
            gateway.kill()
            await gateway.wait()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    flying = [ended - began for began, ended in calls if began <= killed < ended]
    typer.echo(
        f"The Agent's gateway {url} was killed (kill -9) with {len(flying)} calls in flight. The Agent went on "
        f"by the other gateway, and all {len(flying)} returned, the slowest after {max(flying):.2f} s. "
        f"{len(calls)} calls were made; none failed.\n"
    )


def _config(directory: Path, repository: Path) -> Path:
    uvx = find_command("uvx")
    if uvx is None:
        raise Failure("uvx is needed to run the two MCP servers, and was not found (package uv)")
    servers = {
        "git": uvx_server(uvx, "mcp-server-git", "--repository", str(repository)),
        "time": uvx_server(uvx, "mcp-server-time"),
    }
    path = directory / "demo.json"
    path.write_text(json.dumps({"servers": servers}), encoding="utf-8")
    return path


def _patient(settings: UpSettings) -> UpSettings:
    """Time for downloads, no questions, and only Agents of this machine, by the key of this run."""
    no_tokens = dict.fromkeys(("auth_keys", "auth_secret", "auth_jwks", "auth_audience", "auth_issuer"))
    changed = {"confirm": Confirm.ALLOW, "start_s": max(settings.computer.start_s, FIRST_START_S)}
    return replace(
        settings,
        gateway=settings.gateway.model_copy(update={"gateway_host": "127.0.0.1", "insecure": False, **no_tokens}),
        computer=settings.computer.model_copy(update=changed),
    )


async def _call(agent: SmcpAgent, tool: str, params: dict[str, Any]) -> None:
    raise_if_cancelled()
    result = await agent.call_tool(COMPUTER, tool, params, timeout=CALL_S)
    if result.is_error:
        raise Failure(f"{tool} failed: {result.text}")
    typer.echo(f"{tool}  {json.dumps(params)}\n{_readable(result)}")
    typer.echo(f"{result.duration_s * 1000:.1f} ms, trace id {result.trace_id}\n")


def _readable(result: CallResult) -> str:
    """A git log with one line for each commit."""
    commits = re.findall(r"^Commit: '?(\w{8}).*?^Message: ([^\n]*)", result.text, re.MULTILINE | re.DOTALL)
    log = "\n".join(f"  {commit} {printable(subject)}" for commit, subject in commits)
    return log or printable(result.text, newline="\n")
