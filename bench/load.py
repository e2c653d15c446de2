"""Agents that call one tool in a closed loop, in a process of its own.

Reads one measurement a line from standard input (`{"concurrency", "size", "calls"}`), prints one result a line; the
process that measures CPU reads the counters of the servers before it writes and after it reads.
"""

import argparse
import asyncio
import json
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


async def connect(url: str, office: str) -> socketio.AsyncClient:
    client = socketio.AsyncClient(json=Json, reconnection=False)
    await client.connect(url, namespaces=["/smcp"], transports=["websocket"])
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
    await client.emit("client:tool_call", request, namespace="/smcp", callback=answered.set_result)
    async with asyncio.timeout(30):
        reply = await answered
    if "code" in reply:
        raise SystemExit(f"a call failed: {reply}")
    return time.perf_counter() - begun


async def measure(
    clients: dict[str, socketio.AsyncClient], concurrency: int, size: int, calls: int
) -> dict[str, float]:
    text = "x" * size
    offices = list(clients)
    latencies: list[float] = []
    left = calls

    async def worker(index: int) -> None:
        nonlocal left
        office = offices[index % len(offices)]
        while left > 0:
            left -= 1
            latencies.append(await one_call(clients[office], office, text))

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for index in range(concurrency):
            tasks.create_task(worker(index))
    seconds = time.perf_counter() - begun
    latencies.sort()
    return {
        "calls": len(latencies),
        "calls_s": len(latencies) / seconds,
        "p50_ms": statistics.median(latencies) * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


async def main(url: str, offices: int) -> None:
    clients = {f"office-{index}": await connect(url, f"office-{index}") for index in range(offices)}
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await measure(clients, **json.loads(line))), flush=True)
    for client in clients.values():
        await client.disconnect()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--offices", type=int, default=16)
    arguments = parser.parse_args()
    uvloop.run(main(arguments.url, arguments.offices))
