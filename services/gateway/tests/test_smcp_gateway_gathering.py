"""Notifications to many: at once after a pause, some at a time under load, and never late without end."""

from collections.abc import Sequence

from smcp_gateway.sockets.outbox import AT_ONCE, Gathering, Outbox
from smcp_gateway.sockets.packet import Frame
from smcp_testing.waiting import eventually


class Written:
    """An outbox whose client takes all at once: what it was written, by write."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.outbox = Outbox(1_000_000, lambda _: None)
        self.outbox.at_once = self._take
        self.outbox._reader_waits = True

    @property
    def frames(self) -> list[bytes]:
        return [frame for write in self.writes for frame in write]

    def _take(self, frames: Sequence[Frame]) -> bool:
        self.writes.append([frame.wire for frame in frames])
        return True


async def test_what_comes_alone_does_not_wait() -> None:
    gathering, many = Gathering(), [Written() for _ in range(10 * AT_ONCE)]
    gathering.tell([each.outbox for each in many], Frame(b"first"))
    assert all(each.writes == [[b"first"]] for each in many)


async def test_a_few_clients_do_not_wait_for_others() -> None:
    gathering, one = Gathering(), Written()
    for _ in range(AT_ONCE):
        gathering.tell([one.outbox], Frame(b"x"))
    assert len(one.writes) == AT_ONCE


async def test_what_follows_closely_goes_together_in_order_and_by_itself() -> None:
    gathering, many = Gathering(), [Written() for _ in range(AT_ONCE)]
    sent = [b"%d" % number for number in range(100)]
    for wire in sent:
        gathering.tell([each.outbox for each in many], Frame(wire))
    assert all(each.frames == sent[:1] and each.outbox.held for each in many)
    await eventually(lambda: all(each.frames == sent for each in many))
    assert all(len(each.writes) == 2 and not each.outbox.held for each in many)
    gathering.tell([many[0].outbox], Frame(b"later"))
    await eventually(lambda: many[0].frames == [*sent, b"later"])


async def test_an_answer_in_between_does_not_overtake_and_does_not_wait() -> None:
    gathering, one, other = Gathering(), Written(), [Written().outbox for _ in range(AT_ONCE)]
    gathering.tell(other, Frame(b"load"))
    gathering.tell([one.outbox], Frame(b"told"))
    assert one.writes == []
    one.outbox.put_nowait(Frame(b"answer"))
    assert one.frames == [b"told", b"answer"]
