"""The pace of chunk requests: a slow or suspended side gets no additional work."""

import asyncio
import time
from collections import Counter

from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.nats.transfers import Send, chunk_index, is_chunk
from smcp_testing.bad_bus import interpose
from smcp_testing.waiting import eventually

MIB = 1024 * 1024
CHUNK = 512 * 1024
BODY = bytes(16 * MIB)
CHUNKS = len(BODY) // CHUNK - 1
"""That have to be asked for: the first one comes unasked."""
PAUSES = 2
"""Of a process that is suspended, while far fewer chunks are on their way than it still wants."""


async def give(_: Incoming) -> Reply:
    return Reply(BODY)


class Asked:
    """Counts what `bus` asks for, by index; the signs of life are not counted."""

    def __init__(self, bus: Bus) -> None:
        self.times: Counter[bytes] = Counter()
        interpose(bus, self._wrap)

    def _wrap(self, send: Send) -> Send:
        def counting(subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
            if is_chunk(head) and chunk_index(head).isdigit():
                self.times[chunk_index(head)] += 1
            send(subject, reply, head, body)

        return counting


async def test_each_chunk_is_asked_of_a_slow_peer_once(nats_url: str) -> None:
    config = BusConfig(url=nats_url)
    async with open_bus(config) as asker, open_bus(config) as server:
        loop = asyncio.get_running_loop()

        def slow(send: Send) -> Send:
            def later(subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
                loop.call_later(1.4, send, subject, reply, head, body)

            return later

        interpose(server, slow)
        asked = Asked(asker)
        await server.serve("large", give)
        assert (await asker.request("large", b"", timeout=120)).body == BODY
        assert asked.times.total() == CHUNKS


async def test_what_was_lost_on_its_way_is_asked_for_again_once(nats_url: str) -> None:
    config = BusConfig(url=nats_url)
    async with open_bus(config) as asker, open_bus(config) as server:
        lost: set[bytes] = set()

        def lossy(send: Send) -> Send:
            def once(subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
                index = chunk_index(head) if is_chunk(head) else b""
                if index in {b"%d" % CHUNKS, b"%d" % (CHUNKS - 1)} - lost:
                    lost.add(index)
                else:
                    send(subject, reply, head, body)

            return once

        interpose(server, lossy)
        asked = Asked(asker)
        await server.serve("large", give)
        assert (await asker.request("large", b"", timeout=30)).body == BODY
        assert len(lost) == 2
        assert asked.times.total() == CHUNKS + len(lost)


async def test_a_resumed_process_does_not_pull_chunks_again_that_are_in_its_socket(nats_url: str) -> None:
    config = BusConfig(url=nats_url)
    async with open_bus(config) as asker, open_bus(config) as server:
        loop = asyncio.get_running_loop()
        await server.serve("large", give)
        asked = Asked(asker)
        on_its_way = asyncio.create_task(asker.request("large", b"", timeout=60))
        pauses = 0

        def much_to_do() -> None:
            nonlocal pauses
            if pauses < PAUSES and not on_its_way.done():
                pauses += 1
                time.sleep(1.2)
                loop.call_later(0.001, much_to_do)

        await eventually(lambda: asked.times)
        much_to_do()
        assert (await on_its_way).body == BODY
        assert pauses == PAUSES
        assert asked.times.total() == CHUNKS
