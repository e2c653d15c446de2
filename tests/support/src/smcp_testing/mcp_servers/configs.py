"""How the servers of this package are configured in a Computer, and started over HTTP."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.ports import Ports

_START_S = 60.0


def command(module: str, *arguments: str, fresh: bool = False) -> list[str]:
    """What starts a server of this package.

    Args:
        fresh: in a Python of its own, for tests of what becomes of the process that is started, and of its children.
            Otherwise, in a run of tests, that process stands for one that is forked, which takes far less time.
    """
    server = f"{__package__}.{module}"
    if fresh or "PYTEST_VERSION" not in os.environ:
        return [sys.executable, "-m", server, *arguments]
    return born(server, *arguments, knows=COMMANDS)


def stdio(
    module: str = "toolbox", *arguments: str, log: Path | None = None, fresh: bool = False, **config: Any
) -> dict[str, Any]:
    """The configuration of a server of this package over stdio.

    Args:
        log: see `toolbox`.
        fresh: see `command`.
        config: further fields of the configuration; `env` goes into the parameters.
    """
    env = config.pop("env", None)
    logged = [] if log is None else ["--log", str(log)]
    program, *options = command(module, *arguments, *logged, fresh=fresh)
    parameters = {"command": program, "args": options, "env": env}
    return {"type": "stdio", "server_parameters": parameters, **config}


def hostile(*options: str, **config: Any) -> dict[str, Any]:
    """The configuration of a server that behaves badly, in a Python of its own; the options are those of `hostile`."""
    program = str(Path(__file__).with_name("hostile.py"))
    parameters = {"command": sys.executable, "args": ["-I", "-S", program, *options]}
    return {"type": "stdio", "server_parameters": parameters, **config}


def context(
    era: Literal["2025", "2026"],
    *,
    windows: int = 0,
    documents: int = 0,
    host: str | None = None,
    content: Sequence[dict[str, Any]] = (),
    page_size: int = 0,
    delay: float = 0.0,
    without: Sequence[str] = (),
    misbehave: Mapping[str, str] | None = None,
    prompts: Sequence[str] = (),
    name: str = "context",
    **config: Any,
) -> dict[str, Any]:
    """The configuration of a server with windows and documents over stdio; the arguments are those of `context`."""
    arguments = ["--windows", str(windows), "--documents", str(documents), "--content", json.dumps(content)]
    arguments += ["--page-size", str(page_size), "--delay", str(delay)]
    arguments += ["--misbehave", json.dumps(misbehave or {})]
    arguments += [] if host is None else ["--host", host]
    for what in without:
        arguments += ["--without", what]
    for prompt in prompts:
        arguments += ["--prompt", prompt]
    arguments += ["--name", name]
    return stdio(f"context_{era}", *arguments, **config)


def lean(
    era: Literal["2025", "2026"],
    *,
    windows: int = 0,
    documents: int = 0,
    host: str = "com.example.lean",
    delay: float = 0.0,
    end_streams: int = 0,
    unacknowledged: bool = False,
    most: int | None = None,
    late: bool = False,
    **config: Any,
) -> dict[str, Any]:
    """The configuration of a server that costs next to nothing; the arguments are those of `lean`."""
    arguments = ["--era", era, "--windows", str(windows), "--documents", str(documents)]
    arguments += ["--host", host, "--delay", str(delay)]
    arguments += ["--end-streams", str(end_streams)]
    arguments += ["--unacknowledged"] if unacknowledged else []
    arguments += [] if most is None else ["--most", str(most)]
    arguments += ["--late"] if late else []
    return stdio("lean", *arguments, **config)


def http(kind: Literal["streamable", "sse"], url: str, **parameters: Any) -> dict[str, Any]:
    """The configuration of a server that is reached over HTTP."""
    return {"type": kind, "server_parameters": {"url": url, **parameters}}


class HttpServer:
    """A server over HTTP; made by `http_toolbox`, `http_context` and others.

    `env`: what its environment has beside ours.
    """

    def __init__(
        self,
        kind: Literal["streamable", "sse"],
        options: Sequence[str],
        module: str = "toolbox",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._env = env
        self._module = module
        self.url = ""
        self._options = options
        self._port = Ports().take()
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start it, on the same port each time."""
        arguments = ["--transport", self.kind, "--port", str(self._port), *self._options]
        program = command(self._module, *arguments)
        env = {**os.environ, **(self._env or {})}
        self._process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, env=env)
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_S):
            self.url = (await self._process.stdout.readline()).decode().strip()

    async def kill(self) -> None:
        """Kill it, and wait."""
        if self._process is not None:
            # Not SIGKILL: it has to have ended when what stands for it has (`fork_client`): its port is wanted again.
            self._process.send_signal(signal.SIGQUIT if self._env is None else signal.SIGKILL)
            await self._process.wait()
            self._process = None


def http_toolbox(
    kind: Literal["streamable", "sse"],
    *,
    log: Path | None = None,
    requests: Path | None = None,
    hold: Sequence[str] = (),
) -> HttpServer:
    """A toolbox over HTTP while the body runs.

    Args:
        log: see `toolbox`.
        requests, hold: see `http_door`.
    """
    options = [] if log is None else ["--log", str(log)]
    options += [] if requests is None else ["--requests", str(requests)]
    for what in hold:
        options += ["--hold", what]
    return HttpServer(kind, options)


def http_context(*, windows: int = 0) -> HttpServer:
    """A context server of the 2026 era over Streamable HTTP while the body runs."""
    return HttpServer("streamable", ["--windows", str(windows)], "context_2026")


def http_eliciting(era: Literal["2025", "2026"]) -> HttpServer:
    """A server that elicits over Streamable HTTP while the body runs; see `eliciting`."""
    return HttpServer("streamable", ["--era", era], "eliciting")


def http_instrumented(kind: Literal["streamable", "sse"], env: Mapping[str, str]) -> HttpServer:
    """A toolbox that is traced as `env` says, over HTTP, while the body runs."""
    return HttpServer(kind, [], "instrumented", env)


def http_conformance() -> HttpServer:
    """The server of MCP's conformance suite over Streamable HTTP while the body runs."""
    return HttpServer("streamable", [], "conformance")


def over_http(*program: str) -> HttpServer:
    """A server that a program is over a pipe, over Streamable HTTP while the body runs; see `over_http`."""
    return HttpServer("streamable", ["--", *program], "over_http")


def http_raw(kind: Literal["streamable", "sse"], *, plain: bool = False) -> HttpServer:
    """A raw server over HTTP while the body runs; see `raw`."""
    return HttpServer(kind, ["--plain"] if plain else [], "raw")
