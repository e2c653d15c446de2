"""Rules of the protocol pages about MCP servers that no other test of the Computer covers."""

import json
import sys
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import pytest
from aiohttp import web

from smcp_computer.config.file import load_config, parse_config
from smcp_computer.mcp.errors import BadAnswer
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.tools import Catalogue
from smcp_proto.tool_results import time_limit
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import running_all

SCRIPT = """
import json, os, sys
out = sys.stdout.buffer
def say(message):
    out.write((json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False) + "\\n").encode(ENCODING))
    out.flush()
for line in sys.stdin.buffer:
    request = json.loads(line.decode(ENCODING))
    method = request["method"]
    if method == "initialize":
        say({"id": request["id"], "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
             "serverInfo": {"name": "s", "version": "1"}}})
    elif method == "tools/list":
        say({"id": request["id"], "result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}})
    elif method == "tools/call":
        said = request["params"]["arguments"].get("say", "")
        text = json.dumps({"cwd": os.getcwd(), "argv": sys.argv[1:], "said": said}, ensure_ascii=False)
        out.write(b'{"jsonrpc": "2.0", "id": ' + str(request["id"]).encode(ENCODING) + b', "result": {"content": '
                  b'[{"type": "text", "text": ' + json.dumps(text, ensure_ascii=False).encode(ENCODING)
                  + b'}, {"type": "text", "text": "' + RAW + b'"}]}}\\n')
        out.flush()
    elif "id" in request:
        say({"id": request["id"], "error": {"code": -32601, "message": "no such method"}})
"""


def script(path: Path, *, encoding: str = "utf-8", raw: bytes = b"ok") -> str:
    """A server that says where and how it was started, and then the bytes `raw`."""
    path.write_text(f"ENCODING = {encoding!r}\nRAW = {raw!r}\n{SCRIPT}", encoding="utf-8")
    return str(path)


def running(
    config: str | Path, *, ready: Collection[str] | None = None
) -> AbstractAsyncContextManager[dict[str, Supervisor]]:
    parsed = load_config(config) if isinstance(config, Path) else parse_config(config)
    return running_all(parsed, ready=ready)


def stdio(*arguments: str, **parameters: Any) -> str:
    body = {"command": sys.executable, "args": list(arguments), **parameters}
    return json.dumps({"servers": {"s": {"type": "stdio", "server_parameters": body}}})


async def texts(supervisor: Supervisor, **arguments: Any) -> list[str]:
    result = await supervisor.call("t", arguments, timeout=20)
    return [block["text"] for block in result["content"]]


@pytest.mark.rule(
    "data-structures.BaseMCPServerConfig.disabled.meaning", "computer.architecture.3.2", "computer.manager.disabled"
)
async def test_a_server_that_is_disabled_is_not_started_and_its_tools_are_not_listed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    off = {
        "type": "stdio",
        "disabled": True,
        "server_parameters": {"command": sys.executable, "args": ["-c", f"open({str(started)!r}, 'w')"]},
    }
    async with running(json.dumps({"servers": {"off": off, "on": configs.stdio("hello")}})) as servers:
        assert set(servers) == {"on"}
        catalogue = Catalogue(servers)
        catalogue.refresh()
        assert {tool.name for tool in catalogue.listing} == {"hello", "browser_navigate"}
        assert not started.exists()


@pytest.mark.rule("computer.challenge.protocols", "computer.manager.file")
async def test_servers_of_all_three_transports_run_side_by_side(tmp_path: Path) -> None:
    async with configs.http_toolbox("streamable") as streamable, configs.http_toolbox("sse") as sse:
        servers = {
            "local": configs.stdio("hello"),
            "web": configs.http("streamable", streamable.url),
            "old": configs.http("sse", sse.url),
        }
        path = tmp_path / "computer.json"
        path.write_text(json.dumps({"servers": servers}))
        async with running(path) as managed:
            assert {name for name, server in managed.items() if server.ready} == {"local", "web", "old"}


@pytest.mark.rule(
    "data-structures.MCPServerStdioParameters.{command.meaning,args.meaning,cwd.meaning}",
    "computer.{instance.command,start.process}",
)
async def test_a_program_gets_its_arguments_and_its_working_directory(tmp_path: Path) -> None:
    place = tmp_path / "读 here"
    place.mkdir()
    path = script(tmp_path / "server.py")
    async with running(stdio(path, "one two", "$HOME", cwd=str(place))) as servers:
        said = json.loads((await texts(servers["s"]))[0])
    assert said["argv"] == ["one two", "$HOME"]
    assert said["cwd"] == str(place)


@pytest.mark.rule("data-structures.MCPServerStdioParameters.encoding.meaning", "computer.instance.encoding")
@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
async def test_a_program_is_read_and_written_in_its_encoding(tmp_path: Path, encoding: str) -> None:
    path = script(tmp_path / "server.py", encoding=encoding, raw="读".encode(encoding))
    async with running(stdio(path, encoding=encoding)) as servers:
        first, second = await texts(servers["s"], say="写 é")
    assert json.loads(first)["said"] == "写 é"
    assert second == "读"


@pytest.mark.rule("data-structures.MCPServerStdioParameters.encoding_error_handler.meaning")
@pytest.mark.parametrize(("handler", "seen"), [("replace", "a\ufffdb"), ("ignore", "ab")])
async def test_bytes_outside_of_the_encoding_are_handled_as_configured(tmp_path: Path, handler: str, seen: str) -> None:
    path = script(tmp_path / "server.py", raw=b"a\xffb")
    async with running(stdio(path, encoding_error_handler=handler)) as servers:
        assert (await texts(servers["s"]))[1] == seen


@pytest.mark.rule(
    "data-structures.MCPServerStdioParameters.encoding_error_handler.meaning", "answers.config.stdio.errors"
)
async def test_bytes_outside_of_the_encoding_fail_the_call_at_a_strict_server(tmp_path: Path) -> None:
    path = script(tmp_path / "server.py", raw=b"a\xffb")
    async with running(stdio(path)) as servers:
        with pytest.raises(BadAnswer):
            await texts(servers["s"])


@pytest.mark.rule(
    "data-structures.{MCPServerStreamableHttpParameters.headers.meaning,MCPSSEParameters.headers.meaning}",
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_the_headers_of_the_configuration_go_with_every_request(kind: Literal["streamable", "sse"]) -> None:
    seen: list[tuple[str | None, str | None]] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append((request.headers.get("Authorization"), request.headers.get("X-Number")))
        return web.Response(status=500)

    app = web.Application()
    app.router.add_route("*", "/mcp", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server = configs.http(
            kind, f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer x", "X-Number": 7}
        )
        async with running(json.dumps({"servers": {"s": server}}), ready=()) as servers:
            assert not servers["s"].ready
    finally:
        await runner.cleanup()
    assert seen
    assert set(seen) == {("Bearer x", "7")}


@pytest.mark.rule("answers.calls.timeout.computer")
@pytest.mark.parametrize(
    ("timeout", "left", "limit"),
    [
        (1, 100.0, 0.9),
        (4, 100.0, 3.6),
        (5, 100.0, 4.5),
        (6, 100.0, 5.5),
        (3600, 9999.0, 3599.5),
        (60, 2.0, 1.5),
        (5, 0.1, 0.0),
    ],
)
def test_a_computer_answers_a_little_before_its_caller_gives_up(timeout: int, left: float, limit: float) -> None:
    assert time_limit(timeout, left) == pytest.approx(limit)
