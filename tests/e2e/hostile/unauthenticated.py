"""Hostile clients without a token."""

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import aiohttp

from tests.e2e.hostile.mutations import Mutator
from tests.e2e.hostile.rows import GATEWAY, HEALTH_PORT, MCP, wrong_status
from tests.e2e.hostile.target import AT_ONCE, Target

HALF_S: Final = 0.3
"""How long a client of half a request waits; `test_e2e_hostile_unauthenticated` tests what the gateway does."""
PACKETS: Final = 25
"""Of one connection."""
HEARD: Final = ("0", "2", "1", "6", "41", "44")
"""What is said to a client that is not let in: engine.io's own packets, and that the namespace is closed to it."""
LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


async def unauthenticated_http(target: Target, make: Mutator, count: int) -> Counter[str]:
    return await _requests(target, [target.url], GATEWAY, make, count)


async def unauthenticated_at_health_ports(target: Target, make: Mutator, count: int) -> Counter[str]:
    return await _requests(target, target.health_urls, HEALTH_PORT, make, count)


async def unauthenticated_at_smcp_mcp(target: Target, make: Mutator, count: int) -> Counter[str]:
    return await _requests(target, [target.mcp_url], MCP, make, count)


async def _requests(
    target: Target, urls: Sequence[str], paths: Mapping[str, Collection[int]], make: Mutator, count: int
) -> Counter[str]:
    seen = Counter[str]()

    async def one(request: bytes) -> None:
        host, port = make.random.choice(urls).removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(request)
            async with asyncio.timeout(HALF_S):
                while (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 "):
                    pass
                length = LENGTH.search(head)
                body = await reader.readexactly(0 if length is None or request[:4] == b"HEAD" else int(length[1]))
            status = int(head[9:12])
            seen[str(status)] += 1
            if wrong := wrong_status(paths, request, status, body):
                target.failed.append((wrong, request, head, body))
        except (ConnectionError, asyncio.IncompleteReadError):
            seen["closed"] += 1
        except TimeoutError:
            seen["half"] += 1
        finally:
            writer.close()

    for start in range(0, count, AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, count - start)):
                group.create_task(one(make.http()))
    return seen


async def unauthenticated_socketio(target: Target, make: Mutator, count: int) -> Counter[str]:
    """Whatever such a client says, it hears only that it is not let in."""
    seen = Counter[str]()

    async def one(http: aiohttp.ClientSession, inputs: int) -> None:
        packets = [make.packet() for _ in range(inputs)]
        try:
            async with http.ws_connect(f"{target.url}/socket.io/?EIO=4&transport=websocket") as socket:
                for packet in packets:
                    await socket.send_str(packet)
                    seen["ignored"] += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(HALF_S):
                        async for message in socket:
                            if not str(message.data).startswith(HEARD):
                                target.failed.append((f"it hears {message.data!r}", packets))
        except aiohttp.WSServerHandshakeError as refusal:  # packets that connect count as wrong tokens
            seen[str(refusal.status)] += inputs
        except ConnectionError:
            seen["closed"] += inputs

    async with aiohttp.ClientSession() as http:
        for start in range(0, count, AT_ONCE):
            left = min(AT_ONCE, count - start)
            async with asyncio.TaskGroup() as group:
                for begun in range(0, left, PACKETS):
                    group.create_task(one(http, min(PACKETS, left - begun)))
    return seen
