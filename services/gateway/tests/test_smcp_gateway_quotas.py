"""What one office, one key and one member may ask for, and what others have of it."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError
from socketio.exceptions import ConnectionError as Refused

from smcp_auth import api_keys
from smcp_auth import quotas as module
from smcp_auth.api_keys import new_key
from smcp_auth.grants import Grants, Principal, Quota
from smcp_auth.quotas import NAMES, ROUND, SUBJECT_ROUND, Quotas, Ticket, Turns
from smcp_bus.bus import Incoming, Reply
from smcp_gateway.sockets.session import Session
from smcp_proto.errors import RateLimited
from smcp_testing import socketio_pair
from smcp_testing.event_payloads import GOOD, OFFICE
from smcp_testing.gateway_world import Client, connected, gateway_world, reply
from smcp_testing.scraping import scraped
from smcp_testing.socketio_pair import couple, serve
from smcp_testing.waiting import eventually

ASKED = GOOD["client:get_tools"]
FEW = dict.fromkeys(NAMES, 0.0)
"""Any number of everything, where a test does not say another one."""


def a_client(quota: Quota | None = None, subject: str = "anna") -> Session:
    principal = Principal(subject, Grants(offices=("*",), quota=quota))
    return Session(subject, "engine", principal=principal)


def quotas(**few: float) -> Quotas:
    return Quotas({**FEW, **few}, burst_s=1.0, clock=lambda: 100.0)


def refused(table: Quotas, client: Session, size: int = 1) -> dict[str, Any]:
    """The details of the refusal of its next event."""
    with pytest.raises(RateLimited) as refusal:
        table.begin(client, size)
    return refusal.value.details


def begun(table: Quotas, client: Session, times: int, size: int = 1) -> list[Ticket]:
    return [table.begin(client, size) for _ in range(times)]


def test_each_quota_of_events_is_met_where_it_says_and_nobody_else_meets_it() -> None:
    table, client, other = quotas(calls_per_s=2.0), a_client(), a_client(subject="other")
    begun(table, client, 2)
    assert refused(table, client) == {"quota": "calls_per_s", "limit": 2.0, "retry_after_s": 0.5}
    begun(table, other, 1)

    table, client, other = quotas(calls_in_flight=2), a_client(), a_client(subject="other")
    tickets = begun(table, client, 2)
    assert refused(table, client) == {"quota": "calls_in_flight", "limit": 2, "retry_after_s": 1.0}
    begun(table, other, 1)
    table.end(tickets[0], 0)
    begun(table, client, 1)

    table, client, other = quotas(bytes_per_s=100.0), a_client(), a_client(subject="other")
    (ticket,) = begun(table, client, 1, size=90)
    table.end(ticket, 3060)  # answers count, too
    assert refused(table, client) == {"quota": "bytes_per_s", "limit": 100.0, "retry_after_s": 0.51}
    begun(table, other, 1)
    assert table.refused == {**dict.fromkeys(NAMES, 0), "bytes_per_s": 1}


def test_large_messages_wait_for_the_quota_of_bytes_and_events_are_refused_30_s_later() -> None:
    table, client = quotas(bytes_per_s=100.0), a_client()
    assert [round(table.arrived(client, 1000)) for _ in range(3)] == [0, 9, 19]
    begun(table, client, 1)
    assert round(table.arrived(client, 1000)) == 29
    assert refused(table, client)["quota"] == "bytes_per_s"
    assert table.arrived(a_client(subject="other"), 1) == 0


async def test_a_thousand_events_of_an_office_at_once_delay_another_office_by_one_round() -> None:
    turns, begun = Turns(), []

    async def event(office: str) -> None:
        if (turn := turns.take(office)) is not None:
            await turn
        begun.append(office)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(1000):
            tasks.create_task(event("loud"))
        tasks.create_task(event("quiet"))
    assert len(begun) == 1001
    assert begun.index("quiet") == ROUND


async def test_the_events_of_a_hundred_offices_of_one_key_delay_another_office_by_one_round() -> None:
    turns, begun = Turns(), []

    async def event(office: str, subject: str) -> None:
        if (turn := turns.take(office, subject)) is not None:
            await turn
        begun.append(office)

    loud = [f"loud {number}" for number in range(100)]
    async with asyncio.TaskGroup() as tasks:
        for office in loud * 20:
            tasks.create_task(event(office, "eve"))
        tasks.create_task(event("quiet", "anna"))
    assert len(begun) == 2001
    assert begun.index("quiet") == SUBJECT_ROUND
    last = {office: len(begun) - begun[::-1].index(office) for office in loud}
    assert min(last.values()) > 1000, "they took turns"


async def test_a_round_begins_so_many_events_of_one_key_whatever_its_offices() -> None:
    turns = Turns()
    waiting = [turn for number in range(2000) if (turn := turns.take(f"loud {number % 40}", "eve")) is not None]
    rounds, done = [], 0
    while done < len(waiting):
        await asyncio.sleep(0)
        before, done = done, sum(turn.done() for turn in waiting)
        rounds.append(done - before)
    assert max(rounds) == SUBJECT_ROUND


async def test_a_connection_that_ends_before_its_turn_keeps_nobody_waiting() -> None:
    turns = Turns()
    waiting = [turn for _ in range(ROUND + 3) if (turn := turns.take("here")) is not None]
    waiting[0].cancel()
    await asyncio.wait_for(asyncio.gather(*waiting[1:]), 5)
    assert turns.take("here") is None


@pytest.mark.parametrize("offices", [1, 400])
async def test_turns_of_connections_that_have_ended_use_up_no_place_in_a_round(offices: int) -> None:
    """Of one office, and of many with one key."""
    turns = Turns()
    waiting = [turn for number in range(2000) if (turn := turns.take(f"loud {number % offices}", "eve")) is not None]
    for turn in waiting[:-1]:
        turn.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert waiting[-1].done()


def test_the_quota_of_a_key_replaces_the_settings() -> None:
    table = quotas(calls_per_s=5.0, calls_in_flight=1)
    client = a_client(Quota(calls_per_s=2.0, calls_in_flight=0))
    begun(table, client, 2)
    assert refused(table, client)["quota"] == "calls_per_s"


def test_an_office_has_what_its_member_has_by_its_key_where_that_is_more() -> None:
    table = quotas(sockets=2)
    for quota, members in ((None, 2), (Quota(sockets=1), 2), (Quota(sockets=3), 3)):
        client = a_client(quota)
        table.join(client, "office", members - 1)
        with pytest.raises(RateLimited):
            table.join(client, "office", members)


def test_an_account_with_nothing_in_it_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_AT", 3)
    now = 0.0
    table = Quotas({**FEW, "calls_per_s": 1.0}, burst_s=5.0, clock=lambda: now)
    kept = a_client(subject="in flight")
    (ticket,) = begun(table, kept, 1)
    for number in range(2):
        table.end(table.begin(a_client(subject=f"s{number}"), 1), 0)
    assert len(table) == 3
    now = 10.0
    table.end(table.begin(a_client(subject="new"), 1), 0)
    assert len(table) == 2
    table.end(ticket, 0)


def test_a_client_is_counted_again_after_its_idle_account_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_AT", 1)
    table, client = quotas(calls_in_flight=1), a_client()
    table.end(table.begin(client, 1), 0)
    (ticket,) = begun(table, a_client(subject="other"), 1)
    assert len(table) == 1
    begun(table, client, 1)
    assert len(table) == 2
    assert refused(table, client)["quota"] == "calls_in_flight"
    table.end(ticket, 0)


@pytest.mark.parametrize("wrong", [{"calls": 1}, {"sockets": -1}, {"sockets": 1.5}, {"bytes_per_s": "inf"}])
def test_a_quota_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Grants.model_validate_json(orjson.dumps({"offices": ["*"], "quota": wrong}))


class Box:
    """A Computer that counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def serve(self, _: str, __: Incoming) -> Reply:
        self.asked += 1
        return reply({})


async def test_calls_above_the_quota_of_an_office_are_429_and_another_office_is_served(nats_url: str) -> None:
    box = Box()
    slow = {"quota_calls_per_s": 0.05, "quota_burst_s": 100.0}
    async with (
        gateway_world(nats_url, settings=slow) as world,
        world.computer(OFFICE, "box", box.serve),
        world.computer("other", "box", box.serve),
        connected(world.url) as anna,
        connected(world.url) as otto,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert await otto.join("agent", "otto", "other") == [True, None]
        answers = [await anna.call("client:get_tools", ASKED) for _ in range(7)]
        assert answers[:5] == [{}] * 5
        for answer in answers[5:]:
            assert answer["code"] == 429
            assert answer["details"].keys() == {"quota", "limit", "retry_after_s"}
            assert 0 < answer["details"]["retry_after_s"] <= 20
        assert await otto.call("client:get_tools", ASKED) == {}
        assert box.asked == 6
        counted = await scraped(world.health_url)
        assert counted["smcp_gateway_quota_refusals_total", (("quota", "calls_per_s"),)] == 2
        assert counted["smcp_gateway_quota_refusals_total", (("quota", "sockets"),)] == 0


async def test_what_waits_for_the_quota_of_bytes_is_unanswered_and_is_not_begun_after_its_client_is_gone(
    nats_url: str,
) -> None:
    box = Box()
    slow = {"quota_bytes_per_s": 20_000.0, "quota_burst_s": 0.1}  # the second waits for three seconds
    async with (
        gateway_world(nats_url, settings=slow) as world,
        world.computer(OFFICE, "box", box.serve),
        connected(world.url) as anna,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        [session] = world.gateways[0].sessions
        large = {**ASKED, "padding": "x" * 65_470}
        waiting = [asyncio.create_task(anna.call("client:get_tools", large)) for _ in range(2)]
        assert await waiting[0] == {}
        await eventually(lambda: session.in_flight == 1)
        await world.gateways[0].transport.hang_up(session, "a test")
        await eventually(lambda: session.closed and session.in_flight == 0)
        assert box.asked == 1
        waiting[1].cancel()
        await asyncio.wait(waiting)


async def test_a_key_has_no_more_connections_than_its_entry_says_and_an_office_no_more_members(
    nats_url: str, tmp_path: Path
) -> None:
    tokens = []
    for quota in (Quota(sockets=2), None):
        key, entry = new_key(subject=None, offices=["*"], roles=["computer"], names=["*"])
        api_keys.add(tmp_path / "keys.json", entry.model_copy(update={"quota": quota}))
        tokens.append({"token": key})
    few, many = tokens
    settings = {"auth_keys": tmp_path / "keys.json", "quota_sockets": 3}
    async with gateway_world(nats_url, settings=settings) as world:
        async with connected(world.url, auth=few), connected(world.url, auth=few) as second:
            with pytest.raises(Refused):
                async with connected(world.url, auth=few):
                    pass
            assert await second.join("computer", "second", OFFICE) == [True, None]
            async with connected(world.url, auth=many) as one, connected(world.url, auth=many) as two:
                assert await one.join("computer", "one", OFFICE) == [True, None]
                assert await two.join("computer", "two", OFFICE) == [True, None]
                async with connected(world.url, auth=many) as fourth:
                    done, why, *_ = await fourth.join("computer", "fourth", OFFICE)
                    assert (done, why[:4]) == (False, "429 ")
        async with connected(world.url, auth=few) as again:
            assert await again.join("computer", "again", "another") == [True, None]


async def ask(agent: Client, what: str, uri: str) -> Any:
    payload = {"jsonrpc": "2.0", "id": 1, "method": f"resources/{what}", "params": {"uri": uri}}
    named = {"roomId": socketio_pair.OFFICE, "computerId": socketio_pair.BOX, "agent": "anna"}
    return await agent.call(f"client:resources/{what}", named | {"payload": payload})


async def test_subscriptions_of_an_office_at_computers_on_socketio_are_bounded_and_given_back(nats_url: str) -> None:
    granted = {"payload": {"jsonrpc": "2.0", "id": 1, "result": {}}}

    async def grant(_: dict[str, Any]) -> Any:
        return granted

    async with couple(nats_url, settings={"quota_subscriptions": 2}) as pair:
        for event in ("client:resources/subscribe", "client:resources/unsubscribe"):
            serve(pair.box, event, grant)
        for uri in ("x://1", "x://2", "x://1"):
            assert await ask(pair.anna, "subscribe", uri) == granted
        answer = await ask(pair.anna, "subscribe", "x://3")
        assert (answer["code"], answer["details"]["limit"]) == (429, 2)
        assert await ask(pair.anna, "unsubscribe", "x://1") == granted
        assert await ask(pair.anna, "subscribe", "x://3") == granted
