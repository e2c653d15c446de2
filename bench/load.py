"""Agents that call one tool in a closed loop, in a process of its own.

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
from typing import Any

import orjson
import socketio
import uvloop


class Json:
    @staticmethod
    def dumps(value: Any, **_: Any) -> str:
        return orjson.dumps(value).decode()

    loads = staticmethod(orjson.loads)


class CallFailed(SystemExit):
    """It ends the process where every call has to succeed."""


async def connect(url: str, office: str, gone: list[str]) -> socketio.AsyncClient:
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
    return client


async def one_call(client: socketio.AsyncClient, office: str, text: str) -> float:
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


async def measure(
    clients: dict[str, socketio.AsyncClient],
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
    offices = list(clients)
    latencies: list[float] = []
    left, failed = calls, 0

    async def worker(index: int) -> None:
        nonlocal left, failed
        office = offices[index % len(offices)]
        while left > 0 and time.perf_counter() - begun < seconds:
            left -= 1
            try:
                latencies.append(await one_call(clients[office], office, text))
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


async def main(url: str, offices: int) -> None:
    gone: list[str] = []
    clients = {f"office-{index}": await connect(url, f"office-{index}", gone) for index in range(offices)}
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        figures = await measure(clients, **json.loads(line))
        print(json.dumps(figures | {"evicted": len(set(gone))}), flush=True)
    for client in clients.values():
        await client.disconnect()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--offices", type=int, default=16)
    arguments = parser.parse_args()
    uvloop.run(main(arguments.url, arguments.offices))
