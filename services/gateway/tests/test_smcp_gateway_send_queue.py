"""What waits for a client is counted, bounded, and handed out in portions."""

import asyncio

import pytest
from engineio.packet import MESSAGE, PING, Packet
from hypothesis import given
from hypothesis import strategies as st

from smcp_gateway.sockets.engine import PORTION, ROOMY, SendQueue
from smcp_gateway.sockets.packet import Frame


def packet(size: int) -> Packet:
    return Packet(MESSAGE, "x" * size)  # type: ignore[no-untyped-call]


@pytest.mark.rule("answers.large.deaf")
async def test_a_client_with_too_many_unread_bytes_is_disconnected_once() -> None:
    cut: list[SendQueue] = []
    send_queue = SendQueue(100, cut.append)
    await send_queue.put(packet(60))
    assert cut == []
    await send_queue.put(packet(60))
    await send_queue.put(packet(60))
    assert cut == [send_queue]
    assert send_queue.bytes == 180


async def test_the_writer_gets_portions_that_a_polling_client_accepts() -> None:
    send_queue = SendQueue(ROOMY, lambda _: None)
    for _ in range(PORTION + 3):
        await send_queue.put(packet(1))
    sizes = []
    while not send_queue.empty():
        await send_queue.get()
        count = 1
        with pytest.raises(asyncio.QueueEmpty):
            while True:
                send_queue.get_nowait()
                count += 1
        sizes.append(count)
    assert sizes == [PORTION, 3]
    assert send_queue.bytes == 0


async def test_large_messages_wait_for_each_other_until_the_client_has_read() -> None:
    send_queue = SendQueue(4 * ROOMY, lambda _: None)
    written = []

    async def write(name: str) -> None:
        await send_queue.wait_writable()
        written.append(name)
        await send_queue.put(packet(2 * ROOMY))

    tasks = [asyncio.create_task(write(name)) for name in "abc"]
    for expected in ("a", "ab", "abc"):
        while "".join(written) != expected:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
        assert "".join(written) == expected
        await send_queue.get()
    await asyncio.gather(*tasks)


async def test_waiting_for_room_ends_when_the_client_disconnects() -> None:
    send_queue = SendQueue(4 * ROOMY, lambda _: None)
    await send_queue.put(packet(2 * ROOMY))
    waiting = asyncio.create_task(send_queue.wait_writable())
    done, _ = await asyncio.wait([waiting], timeout=0.01)
    assert not done
    send_queue.release()
    await asyncio.wait_for(waiting, 30)


@pytest.mark.rule("answers.large.patience")
async def test_a_ping_overtakes_waiting_messages() -> None:
    send_queue = SendQueue(4 * ROOMY, lambda _: None)
    messages = [packet(ROOMY), packet(1)]
    for message in messages:
        await send_queue.put(message)
    ping = Packet(PING)  # type: ignore[no-untyped-call]
    await send_queue.put(ping)
    assert [await send_queue.get() for _ in range(3)] == [ping, *messages]


async def test_bytes_at_the_writer_count_until_it_asks_for_more() -> None:
    send_queue = SendQueue(4 * ROOMY, lambda _: None)
    await send_queue.put(packet(100))
    await send_queue.put(packet(10))
    await send_queue.get()
    assert (send_queue.bytes, send_queue.held) == (10, 110)
    await send_queue.get()
    assert (send_queue.bytes, send_queue.held) == (0, 10)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_frames_keep_their_order_when_some_are_written_immediately(steps: list[tuple[bool, bool]]) -> None:
    """Each step: whether the socket takes frames at once, and whether the writer gets a turn then."""

    async def run() -> None:
        send_queue = SendQueue(ROOMY, lambda _: None)
        written: list[bytes] = []
        takes = True

        def at_once(frame: Frame) -> bool:
            if takes:
                written.append(frame.wire)
            return takes

        async def write() -> None:
            while (frame := await send_queue.get()) is not None:
                await asyncio.sleep(0)  # the socket is full for a moment
                written.append(frame.wire)

        send_queue.at_once = at_once
        writer = asyncio.create_task(write())
        for number, (room, turn) in enumerate(steps):
            takes = room
            send_queue.put_nowait(Frame(b"%d" % number))
            if turn:
                await asyncio.sleep(0)
        send_queue.put_nowait(None)
        await asyncio.wait_for(writer, 30)
        assert written == [b"%d" % number for number in range(len(steps))]
        assert send_queue.held == 0

    asyncio.run(run())
