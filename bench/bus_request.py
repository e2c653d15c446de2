"""CPU that one 1 KB request costs the asking process, beside nats-py's own `request`.

    python bench/bus_request.py [--requests 20000] [--uvloop]

The echo runs in a process of its own, so what is measured here is the asking side alone. Prints µs of CPU per request
and requests per second, medians of interleaved rounds.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import uvloop

from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_testing.nats_process import NatsServer

BODY = bytes(1024)
SUBJECT = "bench.echo"
ROUNDS = 5

Ask = Callable[[], Awaitable[object]]


async def echo_until_stdin_ends(url: str) -> None:
    async def echo(incoming: Incoming) -> Reply:
        return Reply(incoming.body)

    async with open_bus(BusConfig(url=url)) as bus:
        await bus.serve(SUBJECT, echo, queue="owner")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def round_of(ask: Ask, requests: int, at_a_time: int) -> tuple[float, float]:
    """CPU in µs per request, and requests per second."""

    async def some() -> None:
        for _ in range(requests // at_a_time):
            await ask()

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(some() for _ in range(at_a_time)))
    return (time.process_time() - cpu) / requests * 1e6, requests / (time.perf_counter() - wall)


async def measure(url: str, requests: int) -> None:
    client = await nats.connect(url)
    async with open_bus(BusConfig(url=url)) as bus:
        asks: dict[str, Ask] = {
            "smcp_bus": lambda: bus.request(SUBJECT, BODY, timeout=10),
            "nats-py": lambda: client.request(SUBJECT, BODY, timeout=10),
        }
        for at_a_time in (1, 64):
            count = requests if at_a_time > 1 else requests // 10
            results: dict[str, list[tuple[float, float]]] = {name: [] for name in asks}
            for _ in range(ROUNDS):
                for name, ask in asks.items():
                    results[name].append(await round_of(ask, count, at_a_time))
            for name, rounds in results.items():
                cpu = statistics.median(each[0] for each in rounds)
                rate = statistics.median(each[1] for each in rounds)
                print(f"{at_a_time:>3} at a time  {name:<9} {cpu:7.1f} µs CPU per request  {rate:9.0f} requests/s")
    await client.close()


async def bench(requests: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        server = NatsServer(Path(directory))
        await server.start()
        child = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--echo", server.url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            await asyncio.wait_for(child.stdout.readline(), 20)
            await measure(server.url, requests)
            child.stdin.close()
            await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
            await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--echo", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    work = echo_until_stdin_ends(arguments.echo) if arguments.echo else bench(arguments.requests)
    if arguments.uvloop:
        uvloop.run(work)
    else:
        asyncio.run(work)


if __name__ == "__main__":
    main()
