"""Ownership on a real bus: nothing runs that might be another's."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from smcp_bus.bus import Incoming, NoResponder, Reply
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.ownership import Ownership, owned
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

SUBJECT = "smcp.v1.lab.client.pc.tool_call"


@contextlib.asynccontextmanager
async def owner(url: str, lease_s: float = 10) -> AsyncIterator[tuple[Bus, Ownership]]:
    """A bus that serves SUBJECT while it is owned."""
    async with open_bus(BusConfig(url=url, name="owner")) as bus, asyncio.TaskGroup() as tasks:
        ownership = Ownership(bus, lease_s=lease_s)
        running = tasks.create_task(ownership.run())
        await bus.serve(SUBJECT, owned(echo, ownership.refusal), queue="owner")
        yield bus, ownership
        running.cancel()


async def echo(incoming: Incoming) -> Reply:
    return Reply(incoming.body)


async def ask(bus: Bus) -> Reply:
    return await bus.request(SUBJECT, b"{}", timeout=30)


def is_refused(reply: Reply) -> bool:
    return reply.headers.get(NOT_RUN) == "1" and reply.headers.get(ERROR) == "503"


async def test_nothing_runs_until_the_claim_is_confirmed(nats_server: NatsServer) -> None:
    async with owner(nats_server.url) as (bus, ownership):
        assert is_refused(await ask(bus))
        assert ownership.open(ownership.generation)
        assert await ask(bus) == Reply(b"{}")


async def test_a_confirmation_from_before_a_break_does_not_count(nats_server: NatsServer) -> None:
    async with owner(nats_server.url) as (_, ownership):
        generation = ownership.generation
        ownership.close("a break")
        assert not ownership.open(generation)
        assert not ownership.is_open
        assert ownership.open(ownership.generation)


@pytest.mark.rule("answers.nats.gate")
async def test_a_reconnect_does_not_restore_ownership_by_itself(nats_server: NatsServer) -> None:
    async with owner(nats_server.url) as (_, ownership):
        ownership.open(ownership.generation)
        async with asyncio.timeout(30):
            await nats_server.restart()
            await ownership.wait_closed()
        assert not ownership.is_open
        async with open_bus(BusConfig(url=nats_server.url, name="caller")) as caller:

            async def answered() -> Reply:
                try:
                    return await ask(caller)
                except NoResponder as gone:
                    raise AssertionError("nobody serves it yet") from gone

            assert is_refused(await eventually(answered))


async def test_a_resumed_process_runs_nothing_until_it_is_confirmed(nats_server: NatsServer) -> None:
    async with owner(nats_server.url, lease_s=0.4) as (_, ownership):
        ownership.open(ownership.generation)
        async with open_bus(BusConfig(url=nats_server.url, name="caller")) as caller:
            asked = asyncio.create_task(ask(caller))
            await asyncio.sleep(0)
            time.sleep(0.3)  # noqa: ASYNC251 -- the whole process hangs, as a suspended one does
            assert is_refused(await asked)
            await ownership.wait_closed()


async def test_a_confirmation_from_before_a_suspension_does_not_count(nats_server: NatsServer) -> None:
    async with owner(nats_server.url, lease_s=0.4) as (_, ownership):
        generation = ownership.generation
        time.sleep(0.3)  # noqa: ASYNC251 -- the whole process hangs, as a suspended one does
        assert not ownership.open(generation), "the answer may have waited in the socket all the time"
        assert not ownership.is_open
        assert ownership.open(ownership.generation), "what is asked afterwards counts"


async def test_a_suspension_without_ownership_counts_whichever_check_runs_first(
    nats_server: NatsServer,
) -> None:
    async with owner(nats_server.url, lease_s=0.4) as (bus, ownership):
        generation = ownership.generation
        time.sleep(0.3)  # noqa: ASYNC251 -- the whole process hangs, as a suspended one does
        await bus.flush()  # the ownership's own turn comes before the answer
        assert not ownership.open(generation)
