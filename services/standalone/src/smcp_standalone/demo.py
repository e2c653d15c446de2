"""`smcp demo`: an Agent uses two public MCP servers through the whole chain, here or in a system that runs already."""

import asyncio
import json
import re
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from smcp_agent import CallResult, SmcpAgent, SmcpError
from smcp_agent.errors import Malformed
from smcp_bus.cancellation import raise_if_cancelled
from smcp_computer.confirmation import Confirm
from smcp_service.lifecycle import DONE, FAILED, Failure
from smcp_service.settings import SettingsError
from smcp_standalone.sample_config import find_uvx, uvx_server
from smcp_standalone.up import open_system
from smcp_standalone.up_settings import UpOptions, UpSettings, load_up_settings

OFFICE: Final = "demo office"
COMPUTER: Final = "demo computer"
FIRST_START_S: Final = 300.0
"""How long an MCP server may take to be downloaded and started."""
CALL_S: Final = 60


def find_repository(start: Path) -> Path:
    """The git repository that `start` is in. Raises Failure where there is none."""
    for directory in (start, *start.parents):
        if (directory / ".git").exists():
            return directory
    raise Failure(
        f"{start} is in no git repository (sources without .git?): "
        "clone the repository, or name another one with --repository"
    )


async def until_stopped(stop: asyncio.Event, demonstration: Coroutine[Any, Any, None]) -> int:
    """The demo, broken off when `stop` is set, which is said; gives the exit code of the process."""
    work = asyncio.create_task(demonstration)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    work.cancel()
    await asyncio.wait({work})
    if work.cancelled():
        typer.echo("stopped before its end", err=True)
        return FAILED
    work.result()
    return DONE


async def demo(console: Console, repository: Path, directory: Path) -> None:
    """Start everything, make the two calls and print what they gave.

    Raises:
        Failure: something did not start, or a call failed.
    """
    chosen = UpOptions(office=OFFICE, name=COMPUTER, port=0, config=_config(directory, repository))
    settings = _patient(load_up_settings(chosen, directory))
    async with AsyncExitStack() as stack:
        with _waiting(console, "Starting; the first time, uvx downloads mcp-server-git and mcp-server-time ..."):
            system = await stack.enter_async_context(open_system(chosen, settings, directory))
        raise_if_cancelled()
        if system.failed:
            raise Failure(f"did not start: {', '.join(system.failed)} (see above)")
        console.print(
            f"One process runs nats-server, a registry, a gateway on {system.url} and a Computer with the MCP "
            f"servers {' and '.join(system.servers)}. An Agent joins {system.office!r} and calls their tools.\n",
            highlight=False,
        )
        await _calls(console, system.url, repository)
    console.print("Everything has been stopped. Your own turn: [bold]make up[/bold]")


async def demo_elsewhere(console: Console, url: str, repository: Path, token: str | None) -> None:
    """Make the same two calls in a system that runs already, such as that of docker/compose.yaml.

    Args:
        url: of its gateway. Its Computer is `COMPUTER` in `OFFICE`, with the same two MCP servers.
        repository: a path of the Computer's host.
        token: an API key or a JWT, where the gateway asks who connects.

    Raises:
        SettingsError: that is no URL of a gateway.
        Failure: the gateway cannot be reached, or a call failed.
    """
    console.print(f"An Agent joins {OFFICE!r} on {url} and calls the tools of {COMPUTER!r}.\n", highlight=False)
    await _calls(console, url, repository, token)


async def _calls(console: Console, url: str, repository: Path, token: str | None = None) -> None:
    try:
        async with SmcpAgent(url, office=OFFICE, name="demo agent", token=token) as agent:
            log = {"repo_path": str(repository), "max_count": 5}
            await _call(console, agent, "git_log", log)
            when = {"source_timezone": "Asia/Shanghai", "time": "16:30", "target_timezone": "Europe/Berlin"}
            await _call(console, agent, "convert_time", when)
    except SmcpError as error:
        if isinstance(error, Malformed) and error.details.get("field") == "url":
            raise SettingsError(f"--{error.message}") from error
        raise Failure(f"{error.message} ({int(error.code)})") from error


def _config(directory: Path, repository: Path) -> Path:
    uvx = find_uvx()
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
    """The first start downloads, and nobody is asked: the demo's tools only read.

    Its own Agent alone is to come, from this machine and without a token.
    """
    nobody_else = {"gateway_host": "127.0.0.1", "auth_keys": None, "auth_secret": None, "auth_jwks": None}
    nobody_else |= {"auth_audience": None, "auth_issuer": None}
    changed = {"confirm": Confirm.ALLOW, "start_s": max(settings.computer.start_s, FIRST_START_S)}
    return UpSettings(
        registry=settings.registry,
        gateway=settings.gateway.model_copy(update=nobody_else),
        computer=settings.computer.model_copy(update=changed),
        configuration=settings.configuration,
    )


@contextmanager
def _waiting(console: Console, what: str) -> Iterator[None]:
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        console.print(what)
        yield


async def _call(console: Console, agent: SmcpAgent, tool: str, params: dict[str, Any]) -> None:
    raise_if_cancelled()
    result = await agent.call_tool(COMPUTER, tool, params, timeout=CALL_S)
    if result.is_error:
        raise Failure(f"{tool} failed: {result.text}")
    console.print(f"[bold]{escape(tool)}[/bold]  {escape(json.dumps(params))}", highlight=False)
    console.print(Panel(Text(_readable(result))))
    console.print(f"{result.duration_s * 1000:.1f} ms, trace id {result.trace_id}\n", highlight=False)


def _readable(result: CallResult) -> str:
    """The text without gaps; JSON laid out."""
    text = re.sub(r"\n{3,}", "\n\n", result.text.strip())
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
