"""Members of one office, in a process of its own: an Agent that observes, and Computers that join.

They speak Socket.IO over WebSocket by hand and count notifications without parsing them: 500 joins are 125,000
notifications, and it is the servers that are to be measured.

Reads one command a line from standard input, does it, and prints what came of it, a JSON object a line:

- `{"do": "connect"}`: connect the Computers.
- `{"do": "join", "at_once": true}`: all of them join, or one after the other. Checked: everybody is in the room's list,
  and has received all later enters.
- `{"do": "list", "times": 100}`: the Agent asks for the room's list, again and again.
- `{"do": "disconnect"}`: all of them go.
"""

import argparse
import asyncio
import base64
import json
import os
import statistics
import struct
import sys
import time
from typing import Any, Final, cast
from urllib.parse import urlsplit

import orjson
import uvloop

OFFICE: Final = "office"
AGENT: Final = "observer"
PATIENCE_S: Final = 120.0
CONNECTING: Final = 50
"""Connections that are opened at a time."""

_ENTER: Final = b'42/smcp,["notify:enter_office"'
_LEAVE: Final = b'42/smcp,["notify:leave_office"'


class Failed(Exception):
    """The server did not do what was asked."""


class Tally:
    """Counts, and says when it has come as far as somebody waits for."""

    def __init__(self) -> None:
        self.count = 0
        self._goal = 0
        self._reached = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        if self.count == self._goal:
            self._reached.set()

    async def reach(self, goal: int) -> None:
        self._goal = goal
        self._reached.clear()
        if self.count < goal:
            async with asyncio.timeout(PATIENCE_S):
                await self._reached.wait()


class Member(asyncio.Protocol):
    """One connection. `entered` and `left` count the notifications that it gets."""

    def __init__(self, name: str, entered: Tally, left: Tally) -> None:
        self.name = name
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._entered, self._left = entered, left
        self._acks: dict[int, asyncio.Future[bytes]] = {}
        self._last = 0
        self._buffer = bytearray()
        self._upgraded = False
        self._transport: asyncio.Transport | None = None

    async def ask(self, event: str, body: dict[str, Any]) -> bytes:
        """The JSON array of the acknowledgement's arguments."""
        self._last += 1
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._acks[self._last] = answered
        self._send(b'42/smcp,%d["%b",%b]' % (self._last, event.encode(), orjson.dumps(body)))
        async with asyncio.timeout(PATIENCE_S):
            return await answered

    async def join(self, role: str) -> float:
        """Returns when it was acknowledged (`time.perf_counter`)."""
        answer = await self.ask("server:join_office", {"role": role, "name": self.name, "office_id": OFFICE})
        if answer not in (b"[true,null]", b"[[true,null]]"):
            raise Failed(f"a join was refused: {answer!r}")
        return time.perf_counter()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def closed(self) -> None:
        self.close()
        await self._gone.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)
        key = base64.b64encode(os.urandom(16))
        stream.write(
            b"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n"
        )

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        if not self._upgraded:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not buffer.startswith(b"HTTP/1.1 101"):
                self.close()
                return
            self._upgraded, start = True, end + 4
        while (frame := _frame(buffer, start)) is not None:
            begin, start = frame
            self._take(bytes(buffer[begin:start]))
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        waiting: list[asyncio.Future[Any]] = [self.ready, *self._acks.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(Failed(f"{self.name} lost its connection"))

    # packets

    def _take(self, packet: bytes) -> None:
        if packet.startswith(b"42"):
            if packet.startswith(_ENTER):
                self._entered.add()
            elif packet.startswith(_LEAVE):
                self._left.add()
        elif packet.startswith(b"43/smcp,"):
            number, bracket, rest = packet[8:].partition(b"[")
            if not (waiting := self._acks.pop(int(number))).done():
                waiting.set_result(bracket + rest)
        elif packet == b"2":
            self._send(b"3")
        elif packet.startswith(b"0"):
            self._send(b"40/smcp,")
        elif packet.startswith(b"40/smcp,"):
            self.ready.set_result(None)

    def _send(self, packet: bytes) -> None:
        assert self._transport is not None
        size = len(packet)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, size)
        self._transport.write(head + bytes(4) + packet)  # a mask of zeros leaves the text as it is


def _frame(buffer: bytearray, start: int) -> tuple[int, int] | None:
    """Where the next text stands; a server's frames are not masked, and none of these servers splits a message."""
    have = len(buffer) - start
    if have < 2:
        return None
    size, begin = buffer[start + 1], start + 2
    if size == 126:
        if have < 4:
            return None
        size, begin = int.from_bytes(buffer[start + 2 : start + 4]), start + 4
    elif size == 127:
        if have < 10:
            return None
        size, begin = int.from_bytes(buffer[start + 2 : start + 10]), start + 10
    return (begin, begin + size) if len(buffer) >= begin + size else None


class Room:
    def __init__(self, url: str, size: int) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._size = size
        self._members: list[Member] = []
        self._told, self._left = Tally(), Tally()
        """What the Computers heard, and what the Agent heard."""
        self._seen, self._missed = Tally(), Tally()
        self._observer: Member | None = None
        self._round = 0

    async def connect(self) -> dict[str, Any]:
        if self._observer is None:
            self._observer = await self._member(AGENT, self._seen, self._missed)
            await self._observer.join("agent")
        self._round += 1
        gate = asyncio.Semaphore(CONNECTING)

        async def one(index: int) -> Member:
            async with gate:
                return await self._member(f"pc-{self._round}-{index}", self._told, self._left)

        self._members = await asyncio.gather(*(one(index) for index in range(self._size)))
        return {"connected": len(self._members)}

    async def join(self, at_once: bool) -> dict[str, Any]:
        self._told.count = self._seen.count = 0
        begun = acknowledged = time.perf_counter()
        if at_once:
            acknowledged = max(await asyncio.gather(*(member.join("computer") for member in self._members)))
        else:
            for member in self._members:
                acknowledged = await member.join("computer")
        await self._seen.reach(self._size)
        await self._told.reach(self._size * (self._size - 1) // 2)  # each of all who came later
        told = time.perf_counter()
        names = {session["name"] for session in orjson.loads(await self._list())[0]["sessions"]}
        if names != {AGENT, *(member.name for member in self._members)}:
            raise Failed(f"{len(names)} in the room's list, where {self._size + 1} joined")
        return {
            "acknowledged_s": acknowledged - begun,
            "told_s": told - begun,
            "notifications": self._told.count + self._seen.count,
        }

    async def list(self, times: int) -> dict[str, Any]:
        latencies: list[float] = []
        answer = b""
        for _ in range(times):
            begun = time.perf_counter()
            answer = await self._list()
            latencies.append(time.perf_counter() - begun)
        listed = len(orjson.loads(answer)[0]["sessions"])
        if listed != self._size + 1:
            raise Failed(f"{listed} in the room's list, where {self._size + 1} are")
        return {"times": times, "p50_ms": statistics.median(latencies) * 1e3, "bytes": len(answer)}

    async def disconnect(self) -> dict[str, Any]:
        self._missed.count = 0
        for member in self._members:
            member.close()
        await self._missed.reach(len(self._members))
        return {"left": self._missed.count}

    async def close(self) -> None:
        members = [*self._members, *([self._observer] if self._observer else [])]
        await asyncio.gather(*(member.closed() for member in members))

    async def _list(self) -> bytes:
        assert self._observer is not None
        return await self._observer.ask("server:list_room", {"agent": AGENT, "req_id": "r", "office_id": OFFICE})

    async def _member(self, name: str, entered: Tally, left: Tally) -> Member:
        loop = asyncio.get_running_loop()
        _, member = await loop.create_connection(lambda: Member(name, entered, left), self._host, self._port)
        async with asyncio.timeout(PATIENCE_S):
            await member.ready
        return member


async def main(url: str, size: int) -> None:
    room = Room(url, size)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            done = await getattr(room, command.pop("do"))(**command)
        except (Failed, TimeoutError) as error:
            sys.exit(f"{line.strip()} failed: {type(error).__name__} {error}")
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--size", type=int, default=500)
    arguments = parser.parse_args()
    uvloop.run(main(arguments.url, arguments.size))
