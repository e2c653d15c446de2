"""Agents that call one tool in a closed loop, in a process of its own; with `--mcp`, MCP clients of smcp-mcp.

Reads one measurement a line from standard input (`{"concurrency", "size", "calls"}`), prints one result a line; the
process that measures CPU reads the counters of the servers before it writes and after it reads. `SMCP_TOKEN`: the token
of the Agents; none without it.
"""

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import aiohttp
import orjson
import socketio
import uvloop

from smcp_testing.mcp_service import META

MODERN: Final = {
    "Accept": "application/json, text/event-stream",
    "Mcp-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
}
"""Headers of a call by an MCP client of 2026-07-28, without the name of the tool."""


class Json:
    @staticmethod
    def dumps(value: Any, **_: Any) -> str:
        return orjson.dumps(value).decode()

    loads = staticmethod(orjson.loads)


class CallFailed(SystemExit):
    """It ends the process where every call has to succeed."""


Call = Callable[[str], Awaitable[float]]
"""Calls the tool with a text; returns how long it took (s). Raises CallFailed."""


@asynccontextmanager
async def agent(url: str, office: str, gone: list[str]) -> AsyncIterator[Call]:
    """An Agent in that office. `gone` gets the names of clients that left it, and of the Agent if it is cut off."""
    client = socketio.AsyncClient(json=Json, reconnection=False)

    async def left(told: dict[str, Any]) -> None:
        gone.append(f"{office}: {told.get('computer') or told.get('agent')}")

    async def cut_off(*_: object) -> None:
        gone.append(f"{office}: agent-{office}")

    client.on("notify:leave_office", left, namespace="/smcp")
    client.on("disconnect", cut_off, namespace="/smcp")
    token = os.environ.get("SMCP_TOKEN")
    auth = None if token is None else {"token": token}
    await client.connect(url, namespaces=["/smcp"], transports=["websocket"], auth=auth)
    joined = await client.call(
        "server:join_office", {"role": "agent", "name": f"agent-{office}", "office_id": office}, namespace="/smcp"
    )
    if not joined[0]:
        raise SystemExit(f"join refused: {joined[1]}")

    async def call(text: str) -> float:
        request = {
            "agent": f"agent-{office}",
            "req_id": uuid.uuid4().hex,
            "computer": f"pc-{office}",
            "tool_name": "echo",
            "params": {"text": text},
            "timeout": 30,
        }
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        try:
            await client.emit("client:tool_call", request, namespace="/smcp", callback=answered.set_result)
            async with asyncio.timeout(30):
                reply = await answered
        except (TimeoutError, socketio.exceptions.SocketIOError) as error:
            raise CallFailed(f"a call failed: {error!r}") from None
        if "code" in reply:
            raise CallFailed(f"a call failed: {reply}")
        return time.perf_counter() - begun

    yield call
    await client.disconnect()


@asynccontextmanager
async def mcp_client(url: str, office: str) -> AsyncIterator[Call]:
    """A client of smcp-mcp. It is in the office when it is given."""
    headers = {**MODERN, "Mcp-Name": "echo", "Authorization": f"Bearer {os.environ['SMCP_TOKEN']}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30)) as http:

        async def call(text: str) -> float:
            params = {"name": "echo", "arguments": {"text": text}, "_meta": META}
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            begun = time.perf_counter()
            try:
                async with http.post(f"{url}/mcp/{office}", json=request) as answer:
                    reply = await answer.json()
            except (TimeoutError, aiohttp.ClientError) as error:
                raise CallFailed(f"a call failed: {error!r}") from None
            if reply.get("result", {}).get("isError", True):
                raise CallFailed(f"a call failed: {reply}")
            return time.perf_counter() - begun

        await call("")
        yield call


async def measure(
    clients: list[Call],
    concurrency: int,
    size: int,
    calls: int,
    *,
    seconds: float = math.inf,
    pause_s: float = 0.0,
    may_fail: bool = False,
) -> dict[str, float]:
    """Ends after so many calls or seconds.

    Args:
        pause_s: of a caller after each of its calls.
        may_fail: failed calls are counted, and end nothing.
    """
    text = "x" * size
    latencies: list[float] = []
    left, failed = calls, 0

    async def worker(index: int) -> None:
        nonlocal left, failed
        call = clients[index % len(clients)]
        while left > 0 and time.perf_counter() - begun < seconds:
            left -= 1
            try:
                latencies.append(await call(text))
            except CallFailed:
                if not may_fail:
                    raise
                failed += 1
            if pause_s:
                await asyncio.sleep(pause_s)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for index in range(concurrency):
            tasks.create_task(worker(index))
    seconds = time.perf_counter() - begun
    latencies.sort()
    return {
        "calls": len(latencies),
        "failed": failed,
        "calls_s": len(latencies) / seconds,
        "p50_ms": statistics.median(latencies or [math.inf]) * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3 if latencies else math.inf,
    }


async def main(url: str, offices: int, mcp: bool) -> None:
    gone: list[str] = []
    async with AsyncExitStack() as stack:
        names = [f"office-{index}" for index in range(offices)]
        opened = [mcp_client(url, name) if mcp else agent(url, name, gone) for name in names]
        clients = [await stack.enter_async_context(each) for each in opened]
        print("ready", flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            figures = await measure(clients, **json.loads(line))
            print(json.dumps(figures | {"evicted": len(set(gone))}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--offices", type=int, default=16)
    parser.add_argument("--mcp", action="store_true", help="the URL is that of smcp-mcp")
    arguments = parser.parse_args()
    uvloop.run(main(arguments.url, arguments.offices, arguments.mcp))
