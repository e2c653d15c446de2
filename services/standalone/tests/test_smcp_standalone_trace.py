"""`smcp trace` against a store with Jaeger's query API."""

import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from aiohttp import web

from smcp_proto import catalog
from smcp_service import telemetry
from smcp_standalone import trace_command
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.jaeger_api import jaeger_routes

SMCP = Path(sys.executable).parent / "smcp"
REQ_ID = "0123456789abcdef0123456789abcdef"
HASHED = "fedcba9876543210fedcba9876543210"
START = 1_790_000_000_000_000_000


def span(name: str, number: int, parent: int | None, **fields: Any) -> dict[str, Any]:
    """As the OTLP receiver keeps it; begins `number` ms after the first one."""
    return {
        "resource": {"service.name": "smcp-gateway", "service.instance.id": "gateway-1"},
        "service": "smcp-gateway",
        "scope": "smcp_bus",
        "name": name,
        "kind": "SERVER",
        "trace_id": REQ_ID,
        "span_id": f"{number:016x}",
        "parent_span_id": None if parent is None else f"{parent:016x}",
        "status": "UNSET",
        "attributes": {"smcp.req_id": REQ_ID, "smcp.office": "lab"},
        "events": [],
        "links": [],
        "start_ns": START + number * 1_000_000,
        "end_ns": START + number * 1_000_000 + 5_000_000,
    } | fields


def a_trace() -> list[dict[str, Any]]:
    computer = {"resource": {"service.name": "smcp-computer", "process.pid": 7}, "service": "smcp-computer"}
    moved = {"name": "moving", "attributes": {"tries": 2}, "at_ns": START + 3_000_000}
    return [
        span(
            "tools/call fail", 4, 3, status="ERROR", attributes={"error.type": "tool_error"}, kind="CLIENT", **computer
        ),
        span("client:tool_call", 1, None, events=[moved]),
        span("process call", 3, 2, kind="CONSUMER", **computer),
        span("send call", 2, 1, kind="PRODUCER"),
        span("cancel", 8, None, links=[{"trace_id": REQ_ID, "span_id": f"{1:016x}"}]),
    ]


@asynccontextmanager
async def served(routes: list[web.RouteDef]) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Shown(NamedTuple):
    exit_code: str | int | None
    stdout: str
    stderr: str


async def run_trace(url: str, *arguments: str) -> Shown:
    """Beside the event loop, which serves the store."""

    def run() -> Shown:
        code: str | int | None = 0
        with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()) as complained:
            try:
                trace_command.main(arguments)
            except SystemExit as ended:
                code = ended.code
        return Shown(code, said.getvalue(), complained.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMCP_TRACES_URL", url)
        return await anyio.to_thread.run_sync(run)


async def test_a_trace_is_printed_as_a_tree() -> None:
    async with served(jaeger_routes(a_trace())) as url:
        shown = await run_trace(url, REQ_ID)
    assert (shown.exit_code, shown.stderr) == (0, "")
    head, *lines, link = shown.stdout.splitlines()
    assert head.startswith(f"trace {REQ_ID}  2026-")
    assert head.endswith("12.0 ms  spans: 5  processes: 2  errors: 1")
    assert lines == [
        "      0.0 ms       5.0 ms  client:tool_call  [smcp-gateway gateway-1]",
        "      2.0 ms                 · moving  tries=2",
        "      1.0 ms       5.0 ms  └ send call  [smcp-gateway gateway-1]",
        "      2.0 ms       5.0 ms    └ process call  [smcp-computer 7]",
        "      3.0 ms       5.0 ms      └ tools/call fail  [smcp-computer 7]  ERROR tool_error",
        "      7.0 ms       5.0 ms  cancel  [smcp-gateway gateway-1]",
    ]
    assert link == f"{url}/trace/{REQ_ID}"


async def test_json_is_what_the_store_has_and_the_link() -> None:
    async with served(jaeger_routes(a_trace())) as url:
        shown = await run_trace(url, REQ_ID, "--json")
    told = json.loads(shown.stdout)
    (trace,) = told["traces"]
    assert (told["req_id"], trace["traceID"], trace["url"]) == (REQ_ID, REQ_ID, f"{url}/trace/{REQ_ID}")
    assert {each["operationName"] for each in trace["spans"]} == {each["name"] for each in a_trace()}


@pytest.mark.parametrize("req_id", ["order 7/α", "0" * 32, REQ_ID.upper(), "x" * 10_000])
async def test_a_req_id_that_is_no_trace_id_is_found_by_its_tag(req_id: str) -> None:
    found = span("client:tool_call", 1, None, trace_id=HASHED, attributes={"smcp.req_id": req_id[:256]})
    async with served(jaeger_routes([*a_trace(), found])) as url:
        shown = await run_trace(url, req_id)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[-1] == f"{url}/trace/{HASHED}"


async def test_a_call_in_the_trace_of_an_application_is_found_by_its_tag() -> None:
    async with served(jaeger_routes([span("client:tool_call", 1, None, trace_id=HASHED)])) as url:
        shown = await run_trace(url, REQ_ID)
    assert shown.stdout.splitlines()[-1] == f"{url}/trace/{HASHED}"


async def test_names_from_the_store_cannot_write_to_the_terminal() -> None:
    evil = "echo\x1b[31m\nfake line\u202e" + "x" * 10_000
    bad = span(
        evil,
        1,
        None,
        attributes={"gen_ai.tool.name": evil},
        events=[{"name": evil, "attributes": {evil: evil}, "at_ns": START}],
    )
    async with served(jaeger_routes([bad])) as url:
        shown = await run_trace(url, REQ_ID)
        as_json = await run_trace(url, REQ_ID, "--json")
    assert len(shown.stdout.splitlines()) == 4
    assert not {"\x1b", "\u202e"} & set(shown.stdout + as_json.stdout)
    assert max(map(len, shown.stdout.splitlines())) < 1000
    assert json.loads(as_json.stdout)["traces"][0]["spans"][0]["operationName"] == evil


async def test_a_span_whose_parent_is_missing_is_shown_and_said_so() -> None:
    async with served(jaeger_routes([span("a", 1, 2), span("b", 2, 9)])) as url:
        shown = await run_trace(url, REQ_ID)
    lines = shown.stdout.splitlines()[1:-1]
    assert [line.split()[4].strip("└├ ") or line.split()[5] for line in lines] == ["b", "a"]
    assert [line.endswith("(its parent is not in the store)") for line in lines] == [True, False]


def answering(body: bytes, kind: str, status: int = 200) -> list[web.RouteDef]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, status=status)

    return [web.get("/{path:.*}", answer)]


@pytest.mark.parametrize("req_id", [REQ_ID, "order 7"])
@pytest.mark.parametrize(
    ("routes", "said"),
    [
        (answering(b"<!doctype html>", "text/html"), "does not answer with Jaeger's JSON"),
        (answering(b"<!doctype html>", "text/html", 404), "does not answer with Jaeger's JSON"),
        (answering(b"{}", "application/json", 500), "answers with the status 500"),
        (answering(b"", "text/plain", 401), "answers with the status 401"),
        (answering(b'{"data":null}', "application/json", 404), "has no trace of"),
        (answering(b"[]", "application/json"), "does not answer with Jaeger's JSON"),
        (answering(b'{"data": 7}', "application/json"), "does not answer with Jaeger's JSON"),
    ],
)
async def test_a_store_without_the_trace_is_one_line(routes: list[web.RouteDef], said: str, req_id: str) -> None:
    async with served(routes) as url:
        shown = await run_trace(url, req_id)
    assert (shown.exit_code, shown.stdout) == (1, "")
    (line,) = shown.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize("req_id", ["", "a\nb"])
async def test_what_is_no_req_id_is_wrong_usage_and_no_store_is_asked(req_id: str) -> None:
    shown = await run_trace("http://127.0.0.1:1", req_id)
    assert (shown.exit_code, shown.stdout) == (2, "")
    (line,) = shown.stderr.splitlines()
    assert line.startswith("error: REQ_ID: is empty, or holds a control character; `smcp-agent call` prints ")


CHILD = {"refType": "CHILD_OF", "traceID": "a"}
SPAN = {"traceID": "a", "spanID": "b", "operationName": "x", "startTime": 1, "duration": 1}


@pytest.mark.parametrize(
    "body",
    [
        {"data": [{"traceID": "a", "spans": [{}]}]},
        {"data": [{"traceID": "a", "processes": {}, "spans": [SPAN | {"startTime": math.inf}]}]},
        {"data": [{"traceID": "a", "processes": {}, "spans": [SPAN | {"duration": 10**400}]}]},
        {"data": [{"traceID": "a", "processes": {}, "spans": [SPAN | {"spanID": {}}]}]},
        {"data": [{"traceID": "a", "processes": {}, "spans": [SPAN | {"references": [{**CHILD, "spanID": 7}]}]}]},
    ],
)
async def test_json_of_another_shape_is_one_line(body: Any) -> None:
    async with served(answering(json.dumps(body).encode(), "application/json")) as url:
        shown = await run_trace(url, REQ_ID)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr == f"error: {url} answers with JSON that is not Jaeger's\n"


async def test_a_tag_whose_key_is_no_text_is_shown_as_one() -> None:
    logs = [{"timestamp": 1, "fields": [{"key": 7, "value": "seven"}]}]
    body = {"data": [{"traceID": "a", "processes": {}, "spans": [SPAN | {"logs": logs}]}]}
    async with served(answering(json.dumps(body).encode(), "application/json")) as url:
        shown = await run_trace(url, REQ_ID)
    assert shown.exit_code == 0
    assert "7=seven" in shown.stdout


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "127.0.0.1:16686", "http://", "http://a b/", "http://x:99999", "", "http://u:secret@x/"],
)
async def test_a_url_of_no_store_is_named(url: str) -> None:
    shown = await run_trace(url or " ", REQ_ID)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith("error: the URL of the store of traces: ")
    assert "secret" not in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


async def test_a_store_that_is_away_is_one_line() -> None:
    async with served([]) as url:
        pass
    shown = await run_trace(url, REQ_ID)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.startswith(f"error: no store of traces answers at {url}: Connection refused; ")
    assert "--url or SMCP_TRACES_URL" in shown.stderr
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in shown.stderr, "what no process exports no store has"
    assert "`smcp audit list --req-id` needs none" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


async def test_without_a_call_it_names_what_is_missing() -> None:
    shown = await run_trace("http://127.0.0.1:1")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "required: REQ_ID" in shown.stderr


async def test_help_names_what_it_takes_and_shows_no_login() -> None:
    command = born(SMCP, "trace", "-h", knows=COMMANDS)
    env = {**os.environ, "SMCP_TRACES_URL": "http://me:s3cret@127.0.0.1:1/a%20b"}
    shown = await anyio.to_thread.run_sync(
        partial(subprocess.run, command, check=True, capture_output=True, text=True, timeout=60, env=env)
    )
    assert "s3cret" not in shown.stdout
    assert all(word in shown.stdout for word in ("usage: smcp trace", "REQ_ID", "--url", "SMCP_TRACES_URL", "--json"))


async def test_the_installed_command_prints_it() -> None:
    async with served(jaeger_routes(a_trace())) as url:
        command = born(SMCP, "trace", REQ_ID, "--url", url, knows=COMMANDS)
        shown = await anyio.to_thread.run_sync(
            partial(subprocess.run, command, check=False, capture_output=True, text=True, timeout=60)
        )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[-1] == f"{url}/trace/{REQ_ID}"


def test_what_requests_say_of_their_traces_is_what_telemetry_reads() -> None:
    """The packages import nothing of each other: a trace would have another id than its `req_id`."""
    assert telemetry.TRACE_ID_KEY == catalog.TRACE_ID_KEY
