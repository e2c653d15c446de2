"""Offices whose transfers do not end take no room from others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from types import SimpleNamespace
from typing import cast
from unittest import mock

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from smcp_bus import subjects
from smcp_bus.bus import BusError, Incoming, Reply, RequestTimedOut, TransferFailed
from smcp_bus.headers import ERROR
from smcp_bus.limits import ByteBudget
from smcp_bus.nats import transfers
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.nats.client import NatsClient
from smcp_bus.nats.receiving import Inbox
from smcp_bus.nats.transfers import Plan, Pulling, chunk_head, chunk_index, office_of
from smcp_bus.nats.wire import CHUNKS, SIZE
from smcp_proto.member_names import encode_name
from smcp_testing.trickle import FIRST, TOTAL, Trickle
from smcp_testing.waiting import eventually

MIB = 1024 * 1024
HOUR = 3600.0


def reads(office: str) -> str:
    return subjects.client(office, "pc", "resources_read")


@asynccontextmanager
async def attacker(url: str) -> AsyncIterator[Client]:
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def test_two_offices_that_repeat_a_chunk_for_ever_delay_no_answer_of_a_third_one(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        attacker(nats_url) as client,
        open_bus(BusConfig(url=nats_url)) as gateway,
        open_bus(BusConfig(url=nats_url)) as computer,
    ):
        answer = bytes(2 * MIB)

        async def honest(_: Incoming) -> Reply:
            return Reply(answer)

        await computer.serve(reads("b"), honest)
        trickle = Trickle(client)
        for office in ("a", "c"):
            await trickle.serve(reads(office))
        attacks = [asyncio.create_task(gateway.request(reads(office), b"", timeout=HOUR)) for office in ("a", "c") * 4]

        def announced() -> bool:
            return gateway.stats()["budget_used"] // TOTAL + gateway.stats()["budget_waiting"] == 8

        await eventually(announced)
        # At most one office has a second one: it came before any of the other. Without shares they had all 128 MiB.
        assert gateway.stats()["budget_used"] <= 96 * MIB
        for _ in range(3):
            assert (await gateway.request(reads("b"), b"", timeout=20)).body == answer
        await eventually(lambda: trickle.sent > 8)
        monkeypatch.setattr(transfers, "_STALL_S", 0.5)
        outcomes = await asyncio.gather(*attacks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [TransferFailed] * 8
        assert gateway.stats()["budget_used"] == gateway.stats()["budget_waiting"] == 0


@pytest.mark.parametrize(
    ("bound", "seconds", "size"), [("_STALL_S", 0.5, FIRST), ("LONGEST_S", 1.0, 128 * 1024)], ids=["rate", "time"]
)
async def test_a_body_that_comes_too_slowly_is_given_up_although_its_request_has_time(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, bound: str, seconds: float, size: int
) -> None:
    monkeypatch.setattr(transfers, bound, seconds)
    async with attacker(nats_url) as client, open_bus(BusConfig(url=nats_url)) as gateway:
        trickle = Trickle(client, size=size, pause=0.4, new=True)
        await trickle.serve(reads("a"))
        with pytest.raises(TransferFailed, match="too slow"):
            await gateway.request(reads("a"), b"", timeout=HOUR)
        assert trickle.sent > 1
        assert gateway.stats()["budget_used"] == 0


async def test_the_time_in_which_the_chunks_of_others_come_first_is_not_the_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfers, "_STALL_S", 0.2)
    flights, asked = ByteBudget(FIRST), []
    others = flights.ask(FIRST, lambda: None)
    plan = Plan(2 * FIRST, FIRST)
    pulling = Pulling(
        lambda subject, reply, head, body: asked.append(head), flights, "_INBOX.peer", plan, bytes(FIRST), "", inf
    )
    pulling.start()
    loop = asyncio.get_running_loop()
    over = loop.time() + 0.6
    await eventually(lambda: loop.time() > over)
    assert not asked
    assert not pulling.future.done()
    others.release()
    assert asked == [chunk_head(b"1")]
    pulling.receive("", chunk_head(b"1"), bytes(FIRST))
    assert pulling.future.result() == bytes(2 * FIRST)
    pulling.stop()


async def test_an_office_whose_answers_nobody_takes_leaves_room_for_those_of_others(nats_url: str) -> None:
    async with (
        attacker(nats_url) as client,
        open_bus(BusConfig(url=nats_url, budget_bytes=16 * MIB, drain_timeout=0)) as gateway,
    ):

        async def large(_: Incoming) -> Reply:
            return Reply(bytes(2 * MIB))

        for office in ("a", "b"):
            await gateway.serve(reads(office), large)
        codes = []
        for office in "aaaaaabb":
            taken = await client.request(reads(office), b"", timeout=30)
            codes.append((taken.headers or {}).get(ERROR))
        assert codes == [None] * 4 + ["503"] * 2 + [None] * 2


def test_the_budgets_tell_offices_apart_by_their_token_in_every_subject() -> None:
    of_an_office = [
        subjects.client("büro.1", "pc", "read"),
        subjects.server("büro.1", "agent", "anna", "join_office"),
        subjects.notify("büro.1", "enter_office"),
    ]
    assert {office_of(subject) for subject in of_an_office} == {encode_name("büro.1")}
    assert office_of(subjects.hosts("credential", "process", "lease")) == ""


UNWELCOME = {
    "again": (chunk_head(b"0"), bytes(10)),
    "wrong": (chunk_head(b"5"), bytes(11)),
    "nobody": (b"NATS/1.0 503\r\n\r\n", b""),
}
ENDINGS = st.sampled_from(["chunk", "chunk", "chunk", "again", "wrong", "nobody", "late", "lost", "cancelled"])


@given(steps=st.lists(st.tuples(st.integers(0, 2), ENDINGS), max_size=40))
async def test_a_body_gives_its_shares_back_however_it_ends(steps: list[tuple[int, str]]) -> None:
    asked: dict[str, list[bytes]] = {f"_INBOX.peer.{number}": [] for number in range(3)}

    def send(subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
        if chunk_index(head).isdigit():
            asked[subject].append(head)

    with mock.patch.object(transfers, "_FLIGHT", 25):
        inbox = Inbox("_INBOX", "one")
        client = cast("NatsClient", SimpleNamespace(send=send))
        ours = transfers.Transfers(client, inbox, max_body=1000, budget=100, kept=100)
    deadline, headers = asyncio.get_running_loop().time() + HOUR, {SIZE: "60", CHUNKS: "6"}

    async def pull(number: int) -> bytes:
        address = f"_INBOX.peer.{number}"
        return await ours.pull(f"office-{number}", address, headers, bytes(10), deadline)

    pulls = [asyncio.create_task(pull(number)) for number in range(3)]
    await asyncio.sleep(0)
    entries = cast("list[Pulling]", list(inbox.entries.values()))
    for number, what in steps:
        pulling, heads = entries[number], asked[f"_INBOX.peer.{number}"]
        match what:
            case "chunk" if heads:
                pulling.receive("", heads.pop(0), bytes(10))
            case "again" | "wrong" | "nobody":
                pulling.receive("", *UNWELCOME[what])
            case "late":
                pulling.fail(RequestTimedOut("late"))
            case "lost":
                pulling.lost()
            case "cancelled":
                pulls[number].cancel()
        await asyncio.sleep(0)
    for task in pulls:
        task.cancel()
    await asyncio.wait(pulls)
    for task in pulls:
        assert task.cancelled() or isinstance(task.exception(), BusError) or task.result() == bytes(60)
    assert (ours.budget.used, ours.budget.waiting) == (ours._flights.used, ours._flights.waiting) == (0, 0)
    assert inbox.entries == {}
