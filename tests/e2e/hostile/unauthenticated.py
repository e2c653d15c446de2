"""Hostile clients without a token."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

import aiohttp

from tests.e2e.hostile.mutations import Mutator
from tests.e2e.hostile.target import AT_ONCE, Target

HALF_S: Final = 0.3
"""How long a client of half a request waits; `test_e2e_hostile_unauthenticated` tests what the gateway does."""


async def unauthenticated_http(target: Target, make: Mutator, count: int) -> Counter[str]:
    return await _requests(target, [target.url], make, count)


async def unauthenticated_at_health_ports(target: Target, make: Mutator, count: int) -> Counter[str]:
    return await _requests(target, target.health_urls, make, count)


async def unauthenticated_at_smcp_mcp(target: Target, make: Mutator, count: int) -> Counter[str]:
    return await _requests(target, [target.mcp_url], make, count)


async def _requests(target: Target, urls: Sequence[str], make: Mutator, count: int) -> Counter[str]:
    seen = Counter[str]()

    async def one(request: bytes) -> None:
        host, port = make.random.choice(urls).removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(request)
            async with asyncio.timeout(HALF_S):
                answer = await reader.read(4096)
            status = answer[9:12].decode("ascii", "replace")
            seen[status or "closed"] += 1
            if status.startswith("5"):
                target.failed.append(request)
        except ConnectionError:
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
    seen = Counter[str]()
    async with aiohttp.ClientSession() as http:
        while (left := count - seen.total()) > 0:
            try:
                async with http.ws_connect(f"{target.url}/socket.io/?EIO=4&transport=websocket") as socket:
                    for _ in range(min(left, 25)):
                        await socket.send_str(make.packet())
                        seen["ignored"] += 1
            except aiohttp.WSServerHandshakeError as refusal:  # packets that connect count as wrong tokens
                seen[str(refusal.status)] += 1
            except ConnectionError:
                seen["closed"] += 1
    return seen
