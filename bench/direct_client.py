"""The MCP SDK's own client with one stdio server, in a process of its own: the peer of a call through the whole system.

Reads one measurement a line from standard input (`{"size", "calls"}`), prints one result a line: the median of a call
in milliseconds, and this process's CPU per call in microseconds (the server's is its own).
"""

import argparse
import asyncio
import json
import statistics
import sys
import time

import uvloop
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


async def measure(client: Client, size: int, calls: int) -> dict[str, float]:
    took: list[float] = []
    text, cpu = "x" * size, time.process_time()
    for _ in range(calls):
        began = time.perf_counter()
        await client.call_tool("echo", {"text": text})
        took.append(time.perf_counter() - began)
    cpu_us = 1e6 * (time.process_time() - cpu) / calls
    return {"p50_ms": 1e3 * statistics.median(took), "cpu_us": cpu_us}


async def main(command: list[str]) -> None:
    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with Client(stdio_client(parameters), mode="auto", cache=None) as client:
        print("ready", flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await measure(client, **json.loads(line))), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="starts the MCP server")
    uvloop.run(main(parser.parse_args().command))
