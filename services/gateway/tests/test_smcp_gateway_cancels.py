"""Cancels, asked for or not: what becomes of the calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from smcp_bus import owner, subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.headers import ERROR, SUBJECT
from smcp_testing import issuer
from smcp_testing.box_calls import Hanging
from smcp_testing.event_payloads import GOOD
from smcp_testing.gateway_world import SHORT_LEASE_S, Client, World, connected, gateway_world, reply
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.issuer import shared_token
from smcp_testing.leaving_gateway import OFFICE, RESULT, Box, agent_and_box, call
from smcp_testing.socketio_pair import echo, serve
from smcp_testing.waiting import eventually

SHORT_S = 0.3
NOT_NOW = Reply(b'{"code":503,"message":"the registry does not answer now","details":{}}', {ERROR: "503"})


async def stubborn(verb: str, _: Incoming) -> Reply:
    """A Computer that settles no call."""
    if verb == "tool_call":
        await asyncio.Event().wait()
    return reply({"unknown": []})


@pytest.mark.rule("answers.calls.cancel.gateway")
async def test_a_second_cancel_that_fails_does_not_undo_the_first(nats_url: str) -> None:
    buses, failing = InterposedBuses(), False

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        if failing and subjects.verb_of(incoming.subject) == "tool_call_cancel":
            return NOT_NOW
        return await handler(incoming)

    buses.between = between
    async with (
        gateway_world(nats_url, bad=buses) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", stubborn),
    ):
        await anna.join("agent", "anna", OFFICE)
        waiting: asyncio.Task[Any] = asyncio.create_task(anna.call("client:tool_call", call(3)))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        cancel = {"agent": "anna", "req_id": "r3"}
        assert await anna.call("server:tool_call_cancel", cancel) is None
        failing = True
        assert (await anna.call("server:tool_call_cancel", cancel))["code"] == 503
        assert (await asyncio.wait_for(waiting, 30))["meta"] == {"a2c_cancelled": True}


async def test_a_cancel_that_two_registries_publish_is_passed_on_once(nats_url: str) -> None:
    buses, copies, second = InterposedBuses(), 0, asyncio.Event()

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        nonlocal copies
        if subjects.verb_of(incoming.subject) == "tool_call_cancel":
            copies += 1
            if copies == 2:
                second.set()
            await second.wait()  # as a slow registry, of which another one is asked meanwhile
        return await handler(incoming)

    buses.between = between
    async with (
        gateway_world(nats_url, bad=buses) as world,
        connected(world.url) as anna,
        connected(world.gateways[0].url) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        await box.join("computer", "box", OFFICE)
        cancels = [{"agent": "anna", "req_id": f"r{number}"} for number in (1, 1, 2)]
        for cancel in cancels:
            assert await anna.call("server:tool_call_cancel", cancel) is None
        await eventually(lambda: box.told("notify:tool_call_cancel")[-1:] == cancels[-1:])
        assert copies >= 4
        assert box.told("notify:tool_call_cancel") == cancels


async def test_a_computer_hears_no_cancel_of_another_subject_that_took_the_name(nats_url: str) -> None:
    secret = "a shared secret of the tests, long enough"

    def auth(subject: str) -> dict[str, str]:
        return {"token": shared_token(secret, sub=subject)}

    async with (
        gateway_world(nats_url, settings=issuer.settings(auth_secret=secret)) as world,
        connected(world.url, auth=auth("anna")) as anna,
        connected(world.url, auth=auth("box")) as client,
        world.bus("registry") as bus,
    ):
        box = await agent_and_box(anna, client)
        waiting = asyncio.create_task(anna.call("client:tool_call", call(3)))
        await eventually(lambda: box.asked == ["r3"])
        (owner_of_call,) = (each.caller().subject for each in world.gateways[0].sessions if each.role == "agent")
        for subject, req_id in (("mallory", "r3"), ("mallory", "r4"), (owner_of_call, "r3")):
            cancel = orjson.dumps({"agent": "anna", "req_id": req_id})
            await bus.publish(subjects.notify(OFFICE, "tool_call_cancel"), cancel, headers={SUBJECT: subject})
        assert (await asyncio.wait_for(waiting, 30))["meta"] == {"a2c_cancelled": True}
        assert [each["req_id"] for each in client.told("notify:tool_call_cancel")] == ["r4", "r3"]


class Killed(Exception):
    """What a gateway dies of."""


async def calls(anna: Client, box: Box) -> None:
    """Until the Computer has the call: on a busy machine a lease of a second runs out, and the call is refused."""
    while not box.asked:
        await anna.call("client:tool_call", call(0, timeout=60))


@asynccontextmanager
async def bereft(nats_url: str, lease_s: float) -> AsyncIterator[tuple[World, Box, Client]]:
    """An office whose Agent `anna` has called `box` when its gateway died, without a goodbye.

    Yields the other gateway's world, the Computer there, and its client.
    """
    async with gateway_world(nats_url, lease_s=lease_s) as world, connected(world.url) as client:
        await client.join("computer", "box", OFFICE)
        box, dying = Box(client), gateway_world(nats_url, registry=False, lease_s=lease_s)
        there = await dying.__aenter__()

        async def kill() -> None:
            try:
                await dying.__aexit__(Killed, Killed(), None)
            except* Killed:
                pass

        try:
            async with connected(there.url) as anna:
                await anna.join("agent", "anna", OFFICE)
                calling = asyncio.create_task(calls(anna, box))
                await eventually(lambda: box.asked == ["r0"])
                await kill()
                await anna.gone.wait()
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
        except BaseException:
            await kill()
            raise
        yield world, box, client


@pytest.mark.rule("answers.calls.disconnect.gateway-died")
async def test_the_calls_of_an_agent_whose_gateway_died_are_cancelled_when_its_lease_is_over(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "ABSENT_S", SHORT_S)
    async with bereft(nats_url, SHORT_LEASE_S) as (world, _, client):
        await eventually(lambda: client.told("notify:tool_call_cancel"))
        assert client.told("notify:tool_call_cancel") == [{"agent": "anna", "req_id": "r0"}]
        assert client.told("notify:leave_office") == [{"office_id": OFFICE, "agent": "anna"}]
        await eventually(lambda: world.gateways[0].computers.owner.running == 0)
        async with connected(world.url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
            answer = await again.call("client:tool_call", call(0, timeout=60) | {"a2c_repeat": True})
            assert answer["meta"] == {"a2c_cancelled": True}


@pytest.mark.rule("answers.calls.disconnect.back")
async def test_an_agent_that_returns_after_its_gateway_died_gets_its_results(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "ABSENT_S", SHORT_S)
    async with bereft(nats_url, 10) as (world, box, client), connected(world.url) as again:
        assert await again.join("agent", "anna", OFFICE) == [True, None]
        await eventually(lambda: len(client.told("notify:leave_office")) == 1)
        loop = asyncio.get_running_loop()
        since = loop.time()
        await eventually(lambda: loop.time() - since > 2 * SHORT_S)
        waiting = asyncio.create_task(again.call("client:tool_call", call(0, timeout=60) | {"a2c_repeat": True}))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        box.released.set()
        assert await asyncio.wait_for(waiting, 30) == RESULT
        assert client.told("notify:tool_call_cancel") == []
        assert box.asked == ["r0"]


async def test_an_office_with_many_calls_and_cancels_pushes_out_none_of_another_one(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loud office loses its oldest."""
    most = 40
    monkeypatch.setattr(owner, "MAX_KEYS", most)
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as eve,
        connected(world.url) as evil,
        connected(world.url) as bob,
        connected(world.url) as box,
    ):
        for client, role, name, office in (
            (eve, "agent", "eve", "loud"),
            (evil, "computer", "box", "loud"),
            (bob, "agent", "bob", "quiet"),
            (box, "computer", "box", "quiet"),
        ):
            assert await client.join(role, name, office) == [True, None]
        of_loud, of_quiet = (serve(computer, "client:tool_call", echo) for computer in (evil, box))
        held = world.gateways[0].held

        async def ask(agent: Client, name: str, req_id: str) -> Any:
            return await agent.call("client:tool_call", call() | {"agent": name, "req_id": req_id})

        async def cancel(agent: Client, name: str, req_id: str) -> None:
            assert await agent.call("server:tool_call_cancel", {"agent": name, "req_id": req_id}) is None

        mine = [await ask(bob, "bob", f"r{number}") for number in range(5)]
        await cancel(bob, "bob", "not yet")
        for number in range(2 * most):
            await ask(eve, "eve", f"r{number}")
            await cancel(eve, "eve", f"not yet {number}")
        assert [await ask(bob, "bob", f"r{number}") for number in range(5)] == mine
        assert held()["ended_calls"] <= most >= held()["kept_cancels"]
        assert (await ask(bob, "bob", "not yet"))["meta"]["a2c_cancelled"]
        assert len(of_quiet) == 5
        await ask(eve, "eve", "r0")
        assert "meta" not in await ask(eve, "eve", "not yet 0")
        assert len(of_loud) == 2 * most + 2


HERE, THERE = "office", "other"


async def test_a_cancel_cancels_no_call_of_another_office_with_the_same_names(nats_url: str) -> None:
    hanging = Hanging()
    cancelled: list[str] = []

    async with (
        gateway_world(nats_url) as world,
        world.computer(THERE, "box", hanging) as there,
        connected(world.url) as otto,
        connected(world.url) as eve,
    ):

        async def heard(incoming: Incoming) -> None:
            cancelled.append(orjson.loads(incoming.body)["req_id"])

        await there.bus.listen(subjects.notify(THERE, "tool_call_cancel"), heard)
        await otto.join("agent", "anna", THERE)
        await eve.join("agent", "anna", HERE)
        waiting = asyncio.create_task(otto.call("client:tool_call", GOOD["client:tool_call"] | {"req_id": "same"}))
        await asyncio.wait_for(hanging.running.wait(), 30)
        assert await eve.call("server:tool_call_cancel", {"agent": "anna", "req_id": "same"}) is None
        assert await otto.call("server:tool_call_cancel", {"agent": "anna", "req_id": "another"}) is None
        await eventually(lambda: cancelled == ["another"])
        hanging.released.set()
        assert await waiting == {"unknown": []}
