"""Claims of seats, decided on what the store has."""

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from smcp_bus.audit import Trail
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_proto.errors import NotInOffice
from smcp_registry.admission import Action
from smcp_registry.audit import Audit
from smcp_registry.bucket_watch import ConnectionWatch
from smcp_registry.leases import Leases, Owners
from smcp_registry.member_records import record_key
from smcp_registry.members_view import MembersView
from smcp_registry.seats import Seats
from smcp_registry.store import open_store, read_member
from smcp_testing.member_process import member_process


@asynccontextmanager
async def blind_seats(url: str) -> AsyncIterator[Seats]:
    """Their view has seen nothing yet."""
    async with open_bus(BusConfig(url=url)) as bus:
        connection = ConnectionWatch(bus)
        try:
            store = await open_store(bus, bus.jetstream(), lease_s=10, replicas=1)
            leases = Leases(store.leases, lease_s=10)
            owners = Owners(bus, connection, leases, patience_s=5, settle_s=0)
            audit = Audit(Trail(logging.getLogger("test")), MembersView(), leases)
            seats = Seats(store, owners, audit, move_s=30)
            yield seats
            stored = await read_member(store.members, record_key("lab", "computer", "pc"))
            assert stored.record is not None
        finally:
            connection.close()


async def test_a_seat_of_another_member_is_refused(nats_url: str) -> None:
    async with blind_seats(nats_url) as seats, member_process(nats_url) as member:
        first, _ = await seats.claim("lab", "computer", "pc", member.claim("s1"), until=math.inf)
        assert first.action is Action.CLAIM
        refused, _ = await seats.claim("lab", "computer", "pc", member.claim("s2"), until=math.inf)
        assert refused.action is Action.REFUSE
        assert member.asked == 1, "its owner was asked"


async def test_a_repeated_claim_changes_nothing(nats_url: str) -> None:
    async with blind_seats(nats_url) as seats, member_process(nats_url) as member:
        _, stands = await seats.claim("lab", "computer", "pc", member.claim(), until=math.inf)
        again, stored = await seats.claim("lab", "computer", "pc", member.claim(), until=math.inf)
        assert (again.action, stored.revision) == (Action.UNCHANGED, stands.revision)


async def test_a_late_copy_of_an_abandoned_join_makes_no_member(nats_url: str) -> None:
    async with blind_seats(nats_url) as seats, member_process(nats_url) as member:
        with pytest.raises(NotInOffice):
            await seats.release("lab", "computer", "pc", member.claim())
        member.given_up.add(member.claim().incarnation)
        late, _ = await seats.claim("lab", "computer", "pc", member.claim(), until=math.inf)
        assert late.action is Action.REFUSE
