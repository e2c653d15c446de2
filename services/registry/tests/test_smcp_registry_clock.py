"""Registries on machines whose clocks are minutes apart: what one of them says lasts as long for all."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest

from smcp_bus.bus import Reply
from smcp_bus.errors import RequestTimedOut
from smcp_bus.nats.bus import BusConfig, NatsBus, open_bus
from smcp_bus.registry_contract import Assertion, AssertOutcome, Member
from smcp_registry.app import open_registry
from smcp_registry.clock import StoreClock
from smcp_registry.settings import RegistrySettings
from smcp_registry.store import StoreUnusable, open_store
from smcp_testing.member_process import member_process, observe
from smcp_testing.waiting import eventually

LEASE_S: Final = 1.0
MOVE_S: Final = 2.0
APART_S: Final = 300.0
MEMBERS: Final = 8
"""Each is moved by whichever registry is asked: all by the same one happens once in 128 runs."""


def clock(ahead: float) -> Callable[[], float]:
    """Of a machine."""
    right = time.time
    return lambda: right() + ahead


@asynccontextmanager
async def registries_apart(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Two, of which the second one's clock is ahead: whatever it keeps of `time.time` is that clock."""
    settings = RegistrySettings(nats_url=url, lease_s=LEASE_S, move_s=MOVE_S)
    async with AsyncExitStack() as stack:
        for ahead in (0.0, APART_S):
            bus = await stack.enter_async_context(open_bus(BusConfig(url=url)))
            with monkeypatch.context() as machine:
                machine.setattr(time, "time", clock(ahead))
                await stack.enter_async_context(open_registry(settings, bus))
        yield


async def test_a_place_is_kept_for_as_long_as_was_said_by_whichever_registry(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"pc {number}" for number in range(MEMBERS)]
    async with (
        registries_apart(nats_url, monkeypatch),
        member_process(nats_url) as bystander,
        member_process(nats_url) as old,
    ):
        observer = await observe(bystander.bus, "lab")
        claims = {name: old.claim(name, identity="me") for name in names}
        for name, claim in claims.items():
            await old.join("lab", "computer", name, claim)
        began = time.monotonic()
        for name, claim in claims.items():
            member = Member(office="lab", role="computer", name=name, claim=claim, moving=True)
            result = await old.registry.assert_members(Assertion(members=[member]))
            assert result.members[0].outcome is AssertOutcome.UNCHANGED
            old.sessions.discard(name)
        said = time.monotonic()

        def left() -> list[str]:
            return [name for name in names if "leave_office" in observer.of(name)]

        await eventually(left, timeout=MOVE_S + 5)
        assert time.monotonic() - began >= MOVE_S, "whose clock is ahead ends nobody's move"
        await eventually(lambda: left() == names, timeout=max(said + MOVE_S + 5 - time.monotonic(), 0.01))


async def test_the_time_is_that_of_nats_server_and_not_this_machines(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = RegistrySettings(nats_url=nats_url, lease_s=LEASE_S)
    async with open_bus(BusConfig(url=nats_url)) as bus, open_registry(settings, bus):
        told = StoreClock(bus, "KV_leases")
        with monkeypatch.context() as machine:
            machine.setattr(time, "time", clock(-APART_S))
            await told.measure()
            assert "300 s behind nats-server's" in caplog.text
        assert told.now() == pytest.approx(time.time(), abs=1)


async def test_a_stream_that_is_gone_changes_nothing_of_what_is_known(nats_url: str) -> None:
    settings = RegistrySettings(nats_url=nats_url, lease_s=LEASE_S)
    async with open_bus(BusConfig(url=nats_url)) as bus, open_registry(settings, bus):
        unknown = StoreClock(bus, "KV_nobody")
        await unknown.measure()
        assert unknown.now() == pytest.approx(time.time(), abs=1)


class Forgetful:
    """Stands in for a bus's `request`: so many questions about a stream have no answer."""

    def __init__(self, bus: NatsBus, unanswered: int) -> None:
        self._request = bus.request
        self._left = unanswered

    async def request(self, subject: str, body: bytes, **options: Any) -> Reply:
        if subject.startswith("$JS.API.STREAM.INFO.") and self._left:
            self._left -= 1
            raise RequestTimedOut("no answer in time")
        return await self._request(subject, body, **options)


async def test_a_registry_starts_though_answers_about_the_time_are_lost(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        monkeypatch.setattr(bus, "request", Forgetful(bus, 2).request)
        store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)
        assert store.clock.known


async def test_where_nats_server_never_says_what_time_it_is_the_store_cannot_be_used(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        monkeypatch.setattr(bus, "request", Forgetful(bus, 1_000_000).request)
        with pytest.raises(StoreUnusable, match="does not say what time it is: no answer in time"):
            await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1, start_s=0.5)
