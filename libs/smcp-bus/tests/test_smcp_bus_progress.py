"""The progress of chunked requests, and unguessable tokens."""

import pytest

from smcp_bus.bus import Incoming, Reply, RequestTimedOut
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.nats.receiving import Entry, Inbox
from smcp_testing.bad_bus import BadBus, Rates

MIB = 1024 * 1024


class Told:
    def __init__(self) -> None:
        self.what: list[str] = []

    def request_moved(self) -> None:
        self.what.append("moved")

    def request_delivered(self) -> None:
        self.what.append("delivered")

    def watched(self) -> None:
        self.what.append("answer")

    def noted(self, body: bytes) -> None:
        self.what.append("note")


async def test_progress_is_reported_for_a_chunked_request_and_not_for_a_small_one(nats_url: str) -> None:
    at_delivery: list[str] = []

    async def length(incoming: Incoming) -> Reply:
        at_delivery[:] = told.what
        return Reply(b"%d" % len(incoming.body))

    async with open_bus(BusConfig(url=nats_url)) as bus, open_bus(BusConfig(url=nats_url)) as owner:
        await owner.serve("progress", length)
        told = Told()
        assert (await bus.request("progress", b"small", timeout=30, progress=told)).body == b"5"
        assert told.what == []
        assert (await bus.request("progress", b"x" * 2 * MIB, timeout=30, progress=told)).body == b"%d" % (2 * MIB)
        assert told.what == ["moved", "moved", "moved", "moved", "delivered"]
        assert at_delivery[:4] == ["moved"] * 4


async def test_progress_is_reported_when_a_chunked_answer_begins(nats_url: str) -> None:
    async def large(_: Incoming) -> Reply:
        return Reply(b"x" * 2 * MIB)

    async with open_bus(BusConfig(url=nats_url)) as bus, open_bus(BusConfig(url=nats_url)) as owner:
        await owner.serve("progress", large)
        told = Told()
        assert len((await bus.request("progress", b"", timeout=30, progress=told)).body) == 2 * MIB
        assert told.what == ["answer"]


async def test_no_progress_is_reported_for_an_answer_lost_by_a_bad_bus(nats_url: str) -> None:
    async def large(_: Incoming) -> Reply:
        return Reply(b"x" * 2 * MIB)

    async with open_bus(BusConfig(url=nats_url)) as bus, open_bus(BusConfig(url=nats_url)) as owner:
        await owner.serve("progress", large)
        async with BadBus(bus, 1, replies=Rates(lost=1.0)) as bad, BadBus(bus, 1) as sound:
            lost, told = Told(), Told()
            with pytest.raises(RequestTimedOut):
                await bad.request("progress", b"x" * MIB, timeout=3, progress=lost)
            assert lost.what == ["moved", "moved", "delivered"]
            await sound.request("progress", b"x" * MIB, timeout=30, progress=told)
            assert told.what == ["moved", "moved", "delivered", "answer"]


class Nowhere(Entry):
    """A place that takes what comes."""

    def receive(self, reply: str, head: bytes, body: bytes) -> None: ...

    def lost(self) -> None: ...


def test_a_token_cannot_be_guessed_from_another() -> None:
    inbox = Inbox("_INBOX", "p")
    secrets = {inbox.enter(Nowhere())[0].partition(b"-")[2] for _ in range(1024)}
    assert len(secrets) == 1024
    assert {len(secret) for secret in secrets} == {16}
