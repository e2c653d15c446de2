"""What a Computer's credential cannot be used for, by somebody who has it and writes NATS by hand."""

from uuid import uuid4

import pytest

from smcp_bus import subjects
from smcp_testing.nats_peer import nats_peer
from tests.e2e.actors.agents import bare_agent
from tests.e2e.actors.bare import member
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.layout import BETA
from tests.e2e.worlds.world import ELSEWHERE, LAB, World

PROCESS = "0" * 32


@pytest.mark.rule("answers.who.nats.reads", "answers.nats.queue")
async def a_computers_credential_cannot_read_other_subjects(world: World) -> None:
    async with nats_peer(world.nats_url, world.credentials / f"{BETA.credential}.json") as beta:
        for subject, queue in (
            (subjects.client_all(LAB, "alpha"), "owner"),
            (subjects.client_all(ELSEWHERE, "alpha"), "owner"),
            (subjects.client_all(LAB, "beta"), ""),  # its own, but beside the queue: a call would run twice
            ("smcp.v1.>", ""),
            ("smcp.v1.*.notify.>", ""),
            (subjects.notify_all(ELSEWHERE), ""),
            (subjects.SERVER_ALL, "registry"),
            (subjects.hosts("*", "*", "alive"), ""),
            ("_INBOX.>", ""),
            ("_INBOX.host-alpha.>", ""),
            ("$KV.>", ""),
            ("$JS.>", ""),
        ):
            assert not await beta.may_subscribe(subject, queue), subject


@pytest.mark.rule("answers.who.nats")
async def a_computers_credential_cannot_send_for_others(world: World) -> None:
    async with (
        member(world.url(0), "agent", LAB, "watcher") as watcher,
        nats_peer(world.nats_url, world.credentials / f"{BETA.credential}.json") as beta,
    ):
        for subject in (
            subjects.notify(LAB, "leave_office"),
            subjects.notify(LAB, "tool_call_cancel"),
            subjects.server(LAB, "computer", "alpha", "leave_office"),
            subjects.server(LAB, "computer", "alpha", "update_tool_list"),
            subjects.server(LAB, "agent", "watcher", "leave_office"),
            subjects.server(ELSEWHERE, "computer", "alpha", "join_office"),
            subjects.server(ELSEWHERE, "computer", "beta", "join_office"),
            subjects.client(LAB, "alpha", "tool_call"),
            subjects.hosts("host-alpha", PROCESS, "lease"),
            subjects.hosts(BETA.credential, PROCESS, "gateway_lease"),
            subjects.hosts("gateway-1", PROCESS, "assert"),
            subjects.hosts(BETA.credential, PROCESS, "assert"),
            "$JS.API.STREAM.DELETE.KV_members",
            "$KV.members.lab.agent",
            "_INBOX.gateway-1.x",
        ):
            assert not await beta.may_publish(subject), subject
        async with member(world.url(0), "computer", LAB, "last"):
            await watcher.told("notify:enter_office", computer="last")
        assert [data for _, data in watcher.notices if data.get("computer") != "last"] == []
        assert {("computer", "alpha"), ("computer", "beta"), ("agent", "watcher")} <= await watcher.room()


async def an_intruder_does_not_disturb_other_members(world: World) -> None:
    async with (
        nats_peer(world.nats_url, world.credentials / f"{BETA.credential}.json") as beta,
        bare_agent(world.url(1), LAB, "caller") as agent,
    ):
        await beta.may_subscribe(subjects.client_all(LAB, "alpha"), "owner")
        for _ in range(20):
            assert text(await agent.call("alpha", "echo", {"text": "hello"})) == "hello"
        assert beta.client.stats["in_msgs"] == 0


async def a_reply_address_cannot_make_a_service_publish_elsewhere(world: World) -> None:
    """A request says where its answer goes; who answers has more rights than who asks, and must not lend them."""
    async with (
        member(world.url(0), "agent", LAB, "watcher") as watcher,
        nats_peer(world.nats_url, world.credentials / f"{BETA.credential}.json") as beta,
    ):
        ask = subjects.server(LAB, "computer", "beta", "list_room")
        body = b'{"agent": "beta", "req_id": "%b", "office_id": "lab"}' % uuid4().hex.encode()
        for address in (
            subjects.notify(LAB, "leave_office"),
            subjects.client(LAB, "alpha", "tool_call"),
            subjects.hosts("gateway-1", PROCESS, "alive"),
            "$JS.API.STREAM.PURGE.KV_members",
            "$KV.members.lab.computer.alpha",
        ):
            await beta.client.publish(ask, body, reply=address)
        await beta.flushed()
        for _ in world.registries:
            # Asked properly, it is answered; by then those from before have been dealt with.
            await beta.client.request(ask, body, timeout=30)
        async with member(world.url(0), "computer", LAB, "last"):
            await watcher.told("notify:enter_office", computer="last")
        assert [event for event, data in watcher.notices if data.get("computer") != "last"] == []
        assert {("computer", "alpha"), ("computer", "beta"), ("agent", "watcher")} <= await watcher.room()
