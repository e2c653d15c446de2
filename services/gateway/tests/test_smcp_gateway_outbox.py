"""What waits for a client is counted, bounded, and handed out in portions."""

import asyncio

import pytest
from engineio.packet import MESSAGE, PING, Packet
from hypothesis import given
from hypothesis import strategies as st

from smcp_gateway.sockets.engine import PORTION, ROOMY, Outbox
from smcp_gateway.sockets.packet import Frame


def packet(size: int) -> Packet:
    return Packet(MESSAGE, "x" * size)  # type: ignore[no-untyped-call]


@pytest.mark.rule("answers.large.deaf")
async def test_a_client_with_too_many_unread_bytes_is_disconnected_once() -> None:
    cut: list[Outbox] = []
    outbox = Outbox(100, cut.append)
    await outbox.put(packet(60))
    assert cut == []
    await outbox.put(packet(60))
    await outbox.put(packet(60))
    assert cut == [outbox]
    assert outbox.bytes == 180


async def test_the_writer_gets_portions_that_a_polling_client_accepts() -> None:
    outbox = Outbox(ROOMY, lambda _: None)
    for _ in range(PORTION + 3):
        await outbox.put(packet(1))
    sizes = []
    while not outbox.empty():
        await outbox.get()
        count = 1
        with pytest.raises(asyncio.QueueEmpty):
            while True:
                outbox.get_nowait()
                count += 1
        sizes.append(count)
    assert sizes == [PORTION, 3]
    assert outbox.bytes == 0


async def test_large_messages_wait_for_each_other_until_the_client_has_read() -> None:
    outbox = Outbox(4 * ROOMY, lambda _: None)
    written = []

    async def write(name: str) -> None:
        await outbox.room()
        written.append(name)
        await outbox.put(packet(2 * ROOMY))

    tasks = [asyncio.create_task(write(name)) for name in "abc"]
    for expected in ("a", "ab", "abc"):
        while "".join(written) != expected:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
        assert "".join(written) == expected
        await outbox.get()
    await asyncio.gather(*tasks)


async def test_waiting_for_room_ends_when_the_client_disconnects() -> None:
    outbox = Outbox(4 * ROOMY, lambda _: None)
    await outbox.put(packet(2 * ROOMY))
    waiting = asyncio.create_task(outbox.room())
    done, _ = await asyncio.wait([waiting], timeout=0.01)
    assert not done
    outbox.release()
    await asyncio.wait_for(waiting, 30)


@pytest.mark.rule("answers.large.patience")
async def test_a_ping_overtakes_waiting_messages() -> None:
    outbox = Outbox(4 * ROOMY, lambda _: None)
    messages = [packet(ROOMY), packet(1)]
    for message in messages:
        await outbox.put(message)
    ping = Packet(PING)  # type: ignore[no-untyped-call]
    await outbox.put(ping)
    assert [await outbox.get() for _ in range(3)] == [ping, *messages]


async def test_bytes_at_the_writer_count_until_it_asks_for_more() -> None:
    outbox = Outbox(4 * ROOMY, lambda _: None)
    await outbox.put(packet(100))
    await outbox.put(packet(10))
    await outbox.get()
    assert (outbox.bytes, outbox.held) == (10, 110)
    await outbox.get()
    assert (outbox.bytes, outbox.held) == (0, 10)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_frames_keep_their_order_when_some_are_written_immediately(steps: list[tuple[bool, bool]]) -> None:
    """Each step: whether the socket takes frames at once, and whether the writer gets a turn then."""

    async def run() -> None:
        outbox = Outbox(ROOMY, lambda _: None)
        written: list[bytes] = []
        takes = True

        def at_once(frame: Frame) -> bool:
            if takes:
                written.append(frame.wire)
            return takes

        async def write() -> None:
            while (frame := await outbox.get()) is not None:
                await asyncio.sleep(0)  # the socket is full for a moment
                written.append(frame.wire)

        outbox.at_once = at_once
        writer = asyncio.create_task(write())
        for number, (room, turn) in enumerate(steps):
            takes = room
            outbox.put_nowait(Frame(b"%d" % number))
            if turn:
                await asyncio.sleep(0)
        outbox.put_nowait(None)
        await asyncio.wait_for(writer, 30)
        assert written == [b"%d" % number for number in range(len(steps))]
        assert outbox.held == 0

    asyncio.run(run())
