"""The attacks of `bench.hostile`. Each goes on until it is cancelled, or until the services end it."""

import asyncio
import contextlib
import io
import json
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import aiohttp
import nats

from bench.load import MODERN
from bench.processes import BIN
from smcp_bus import subjects
from smcp_service.settings import MIB
from smcp_testing.mcp_servers import configs
from smcp_testing.mcp_service import META
from smcp_testing.raw_client import RawClient, raw_client
from smcp_testing.service_process import service_process
from smcp_testing.slow_reader import small_socket
from smcp_testing.trickle import Trickle

LISTS: Final = "[" + "[]," * 10_000_000 + "[]]"
ESCAPED: Final = r"\n" * 15_000_000
TOOLS: Final = 20_000
MESSAGE: Final = 31 * MIB
STRANGERS: Final = 400
Call = Callable[[], contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]]
HOSTILE: Final = "hostile"
"""The office of the attacker, which has a token."""
UPGRADE: Final = (
    b"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@dataclass
class Target:
    url: str
    nats_url: str
    key: str
    limited_key: str
    """For 64 patterns of tools only."""
    mcp_key: str
    """For the office of the attacker only."""
    mcp_url: str = ""
    """smcp-mcp's, if it is attacked."""

    def client(self) -> contextlib.AbstractAsyncContextManager[RawClient]:
        return raw_client(self.url, token=self.key)

    async def line(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from an address that no well-behaved client has."""
        port = int(self.url.rpartition(":")[2])
        return await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0))

    @contextlib.asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[RawClient, RawClient]]:
        """An Agent `eve` and a Computer `evil` in the office of the attacker."""
        async with self.client() as eve, self.client() as evil:
            await eve.join("agent", "eve", HOSTILE)
            await evil.join("computer", "evil", HOSTILE)
            yield eve, evil


async def nothing(target: Target) -> None:
    """How much the machine alone changes from one phase to the next."""
    await asyncio.Event().wait()


async def compressed_bodies(target: Target) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = b"".join([*(packer.compress(bytes(MIB)) for _ in range(256)), packer.flush()])
    head = f"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"

    async def post() -> None:
        reader, writer = await target.line()
        writer.write(head.encode() + body)
        await reader.read(1000)
        writer.close()

    while True:
        await asyncio.gather(*(post() for _ in range(12)))


async def half_sent_headers(target: Target) -> None:
    """As many connections as are let in, again as soon as they are closed."""

    async def stranger() -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                reader, writer = await target.line()
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nhalf")
                await reader.read()
                writer.close()
            await asyncio.sleep(0.5)

    await asyncio.gather(*(stranger() for _ in range(STRANGERS)))


async def large_messages(target: Target) -> None:
    async def stranger() -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                _, writer = await target.line()
                writer.write(UPGRADE + b"\x81\xff" + MESSAGE.to_bytes(8) + bytes(4))
                for _ in range(MESSAGE // (256 * 1024) - 1):
                    writer.write(bytes(256 * 1024))
                    await writer.drain()
                writer.close()

    await asyncio.gather(*(stranger() for _ in range(20)))


async def wrong_tokens(target: Target) -> None:
    """From the address of the well-behaved clients."""
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.ws_connect(f"{target.url}/socket.io/?EIO=4&transport=websocket") as socket:
                await socket.receive()
                await socket.send_str('40/smcp,{"token":"smcp_0_wrong"}')
                await socket.receive()


async def connects(target: Target) -> None:
    """Of as many connections as one address may have, each with more packets than are read at once."""
    packet = b"40/x,"
    packets = (bytes([0x81, 0x80 + len(packet)]) + bytes(4) + packet) * 3000

    async def stranger() -> None:
        while True:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                reader, writer = await target.line()
                writer.write(UPGRADE)
                await reader.readuntil(b"\r\n\r\n")
                writer.write(packets)
                await reader.read()
                writer.close()

    await asyncio.gather(*(stranger() for _ in range(STRANGERS)))


async def requests_of_lists(target: Target) -> None:
    async with target.client() as eve:
        await eve.join("agent", "eve", HOSTILE)
        while True:
            await eve.ack(await eve.event("client:tool_call", f'{{"computer":"evil","params":{{"v":{LISTS}}}}}'))


async def polled_lists(target: Target) -> None:
    """A message that is not a packet of Socket.IO, of a client that polls."""
    async with aiohttp.ClientSession() as http:
        url = f"{target.url}/socket.io/?EIO=4&transport=polling"
        async with http.get(url) as opened:
            url += f"&sid={json.loads((await opened.text())[1:])['sid']}"
        async with http.post(url, data="40/smcp," + json.dumps({"token": target.key})):
            pass
        while True:
            async with http.post(url, data=io.BytesIO(f"4{LISTS}".encode())) as answer:
                assert answer.status == 200


async def answers_of_lists(target: Target) -> None:
    async with target.pair() as (eve, evil):
        for number in count(1):
            asked = await eve.event("client:get_tools", f'{{"agent":"eve","req_id":"{number}","computer":"evil"}}')
            await evil.asked("client:get_tools")
            evil.told.clear()
            await evil.socket.send_str(f'43/smcp,{number}[{{"tools":{LISTS}}}]')
            await eve.ack(asked)


async def answers_of_escaped_text(target: Target) -> None:
    async with target.pair() as (eve, evil):
        for number in count(1):
            asked = await eve.event("client:tool_call", _call(number, "t"))
            await evil.asked("client:tool_call")
            evil.told.clear()
            await evil.socket.send_str(
                f'43/smcp,{number}[{{"content":[{{"type":"text","text":"{ESCAPED}"}}],"_meta":{{}}}}]'
            )
            await eve.ack(asked)


async def lists_of_many_tools(target: Target) -> None:
    """As many as an answer may have values, asked for again and again."""
    async with target.pair() as (eve, evil):
        tools = ",".join(f'{{"name":"t{number}","description":"","params_schema":{{}}}}' for number in range(TOOLS))
        for number in count(1):
            asked = await eve.event("client:get_tools", f'{{"agent":"eve","req_id":"{number}","computer":"evil"}}')
            await evil.asked("client:get_tools")
            evil.told.clear()
            await evil.socket.send_str(f'43/smcp,{number}[{{"tools":[{tools}],"req_id":"{number}"}}]')
            await eve.ack(asked)


async def tools_without_rights(target: Target) -> None:
    """Calls of tools that the key is not for: each is compared with all of its patterns, and refused."""
    async with raw_client(target.url, token=target.limited_key) as eve:
        await eve.join("agent", "eve", HOSTILE)
        await _without_end(eve, "client:tool_call", _call(1, "a" * 128))


async def trickled_chunks(target: Target) -> None:
    client = await nats.connect(target.nats_url)
    try:
        async with target.client() as eve:
            await eve.join("agent", "eve", HOSTILE)
            await Trickle(client).serve(subjects.client(HOSTILE, "pc", "get_skills"))
            while True:
                body = '{"agent":"eve","computer":"pc"}'
                for number in [await eve.event("client:get_skills", body) for _ in range(4)]:
                    await eve.ack(number)
    finally:
        await client.close()


async def leases_of_gateways(target: Target) -> None:
    """A Computer's credential claims 40 empty gateways, which would get the clients of the others."""
    client = await nats.connect(target.nats_url)
    try:
        while True:
            for number in range(40):
                await client.request(subjects.hosts("evil", f"p{number}", "lease"), b'{"sockets":0,"accepting":true}')
            await asyncio.sleep(1)
    finally:
        await client.close()


async def calls_without_end(target: Target) -> None:
    body = '{"agent":"eve","req_id":"1","computer":"nobody"}'
    async with target.client() as eve:
        await eve.join("agent", "eve", HOSTILE)
        await _without_end(eve, "client:get_tools", body)


async def announcements_without_end(target: Target) -> None:
    async with target.pair() as (_, evil):
        await _without_end(evil, "server:update_desktop", '{"computer":"evil"}')


async def traceparents(target: Target) -> None:
    body = {"agent": "eve", "req_id": "1", "computer": "nobody", "traceparent": "00-" + "0" * 510}
    async with target.client() as eve:
        await eve.join("agent", "eve", HOSTILE)
        await _without_end(eve, "client:get_tools", json.dumps(body))


async def endless_lists(target: Target) -> None:
    """Of an MCP server, at a Computer of the attacker, beside the services."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "computer.json"
        config.write_text(json.dumps({"servers": {"endless": configs.hostile("--endless")}}))
        options = ("run", "--config", config, "--office", HOSTILE, "--name", "lab")
        while True:
            async with service_process(BIN / "smcp-computer", *options, env={"SMCP_NATS_URL": target.nats_url}) as one:
                with contextlib.suppress(TimeoutError):
                    await one.exit_code(timeout=30)


@contextlib.asynccontextmanager
async def _mcp_office(target: Target, large: str, tools: int, *, announces: bool = False) -> AsyncIterator[Call]:
    """The attacker's office at smcp-mcp: what it gives calls its Computer, which lists so many tools, and answers each
    call with that text. `announces`: a change of its list, after each list."""

    async def serve() -> None:
        number = 0
        while True:
            event, asked = await evil.next()
            if not event.startswith("client:"):
                continue
            number += 1
            listed = [f'{{"name":"t{number}_{each}","description":"","params_schema":{{}}}}' for each in range(tools)]
            answer = f'"tools":[{",".join(listed)}]' if event == "client:get_tools" else f'"content":[{large}]'
            await evil.socket.send_str(f'43/smcp,{number}[{{{answer},"req_id":"{asked["req_id"]}"}}]')
            if announces and event == "client:get_tools":
                await evil.event("server:update_tool_list", '{"computer":"evil"}')

    headers = {**MODERN, "Mcp-Name": "t1_0", "Authorization": f"Bearer {target.mcp_key}"}
    connector = aiohttp.TCPConnector(limit=0, socket_factory=small_socket)
    async with target.client() as evil, aiohttp.ClientSession(headers=headers, connector=connector) as http:
        await evil.join("computer", "evil", HOSTILE)
        serving = asyncio.create_task(serve())

        def call() -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
            params = {"name": "t1_0", "arguments": {}, "_meta": META}
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return http.post(f"{target.mcp_url}/mcp/{HOSTILE}", json=request)

        try:
            yield call
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


async def tools_without_end_at_smcp_mcp(target: Target) -> None:
    """A Computer lists 4,000 tools, other ones each time, and announces another change."""
    async with _mcp_office(target, "", 4000, announces=True) as call, call():
        await asyncio.Event().wait()


async def unread_answers_at_smcp_mcp(target: Target) -> None:
    """50 clients of one key ask for 4 MiB each, and wait a second before they go."""
    text = json.dumps({"type": "text", "text": "a" * 4 * MIB})
    async with _mcp_office(target, text, 1) as call:

        async def guest() -> None:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with call() as answer:
                        await answer.content.readany()
                        await asyncio.sleep(1)

        await asyncio.gather(*(guest() for _ in range(50)))


async def _without_end(client: RawClient, event: str, body: str) -> None:
    while True:
        for number in [await client.event(event, body) for _ in range(1000)]:
            await client.ack(number)


def _call(number: int, tool: str) -> str:
    call = {"agent": "eve", "req_id": str(number), "computer": "evil", "tool_name": tool, "params": {}, "timeout": 60}
    return json.dumps(call)


Attack = Callable[[Target], Awaitable[None]]
AT_SMCP_MCP: Final[dict[str, Attack]] = {
    "nothing, at smcp-mcp": nothing,
    "tools without end, at smcp-mcp": tools_without_end_at_smcp_mcp,
    "unread answers, at smcp-mcp": unread_answers_at_smcp_mcp,
}
ATTACKS: Final[dict[str, Attack]] = {
    "nothing": nothing,
    "compressed bodies": compressed_bodies,
    "half-sent headers": half_sent_headers,
    "large messages of unauthenticated clients": large_messages,
    "wrong tokens": wrong_tokens,
    "CONNECTs": connects,
    "requests of lists": requests_of_lists,
    "polled lists": polled_lists,
    "answers of lists": answers_of_lists,
    "answers of escaped text": answers_of_escaped_text,
    "lists of many tools": lists_of_many_tools,
    "tools without rights": tools_without_rights,
    "trickled chunks": trickled_chunks,
    "leases of gateways": leases_of_gateways,
    "calls without end": calls_without_end,
    "announcements without end": announcements_without_end,
    "long traceparents": traceparents,
    "endless lists": endless_lists,
    **AT_SMCP_MCP,
}
