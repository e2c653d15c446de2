"""The seat of a native Computer: claimed, kept over outages, released."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from smcp_bus import subjects
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Joined
from smcp_computer.app import open_computer
from smcp_computer.computer import hinted
from smcp_computer.config.file import parse_config
from smcp_computer.settings import ComputerSettings
from smcp_proto.errors import Unavailable
from smcp_proto.member_names import MAX_NAME_LENGTH
from smcp_registry.member_records import record_key, tombstone
from smcp_registry.store import open_store, read_member, write_member
from smcp_testing.computer_office import NAME, OFFICE, World, computer, registry, world
from smcp_testing.mcp_servers import configs
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually, within


async def test_a_taken_name_is_refused_and_stays_with_the_first_computer(nats_url: str) -> None:
    async with registry(nats_url), computer(nats_url) as first, computer(nats_url, joined=False) as second:
        await eventually(lambda: (second.membership.problem or "").startswith("refused: "))
        assert "office" in second.readiness.problems()
        assert first.membership.problem is None


async def test_a_refused_computer_joins_when_the_name_becomes_free(nats_url: str) -> None:
    async with registry(nats_url), AsyncExitStack() as first:
        await first.enter_async_context(computer(nats_url))
        async with computer(nats_url, joined=False) as second:
            await eventually(lambda: (second.membership.problem or "").startswith("refused: "))
            await first.aclose()
            await asyncio.wait_for(second.membership.has_joined.wait(), 30)


async def test_names_of_the_greatest_length_can_join_and_be_called(nats_url: str) -> None:
    longest = "🤖" * MAX_NAME_LENGTH
    async with (
        registry(nats_url),
        computer(nats_url, {"box": configs.stdio()}, office=longest, name=longest),
        open_bus(BusConfig(url=nats_url)) as agent,
    ):
        body = json.dumps({"agent": longest, "req_id": "r", "computer": longest}).encode()

        async def listed() -> bool:
            reply = await agent.request(subjects.client(longest, longest, "get_tools"), body, timeout=10)
            return "echo" in {tool["name"] for tool in json.loads(reply.body)["tools"]}

        await eventually(listed, timeout=30)  # once its MCP server is up


@pytest.mark.rule("answers.nats.gate")
async def test_an_owner_without_its_seat_runs_nothing_and_answers_503(nats_url: str) -> None:
    async with registry(nats_url), computer(nats_url), computer(nats_url, joined=False) as refused:
        await eventually(lambda: (refused.membership.problem or "").startswith("refused: "))
        async with open_bus(BusConfig(url=nats_url)) as agent:
            body = json.dumps({"agent": "a", "req_id": "r", "computer": NAME}).encode()

            async def gated() -> bool:
                reply = await agent.request(subjects.client(OFFICE, NAME, "get_tools"), body, timeout=30)
                return reply.headers.get(NOT_RUN) == "1" and reply.headers.get(ERROR) == "503"

            await eventually(gated)


@pytest.mark.rule("computer.reconnect.forever")
async def test_the_seat_is_confirmed_after_an_outage_of_nats(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with registry(url), computer(url, {"box": configs.stdio()}, lease_s=2.0) as here:
        await nats_server.stop()
        await eventually(lambda: here.membership.problem is not None)
        here.outbox.changed("update_tool_list")
        await nats_server.start()
        await eventually(lambda: here.membership.problem is None)
        await eventually(lambda: not {each.key.verb for each in here.outbox.waiting})
        assert here.fleet.supervisors["box"].starts == 1


async def test_a_seat_that_a_registry_freed_by_mistake_is_claimed_again(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here, open_bus(BusConfig(url=nats_url)) as bus:
        store = await open_store(bus, bus.jetstream(), lease_s=10.0, replicas=1)
        key = record_key(OFFICE, "computer", NAME)

        def presence() -> list[str]:
            return [verb for verb, _ in here.heard if verb in {"leave_office", "enter_office"}]

        for _ in range(2):
            here.heard.clear()
            member = await read_member(store.members, key)
            assert member is not None
            assert member.record is not None
            await write_member(store.members, key, tombstone(member.record), last=member.revision)
            # before the leave there may be the enter of the first join, still on its way
            await eventually(lambda: presence()[-2:] == ["leave_office", "enter_office"])
            await eventually(lambda: here.computer.membership.problem is None)
        assert (await here.call("echo", text="back"))["isError"] is False


async def test_a_seat_claimed_again_counts_as_new_although_the_answer_to_the_claim_was_lost(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    join, lost = RegistryClient.join, list[Joined]()

    async def loses_the_first_answer(client: RegistryClient, *arguments: Any, **options: Any) -> Joined:
        joined = await join(client, *arguments, **options)
        if not lost:
            lost.append(joined)
            raise Unavailable("the answer was lost", details={"may_have_run": True})
        return joined

    async with registry(nats_url), computer(nats_url) as here, open_bus(BusConfig(url=nats_url)) as bus:
        monkeypatch.setattr(RegistryClient, "join", loses_the_first_answer)
        since = here.seat.held_since
        store = await open_store(bus, bus.jetstream(), lease_s=10.0, replicas=1)
        member = await read_member(store.members, record_key(OFFICE, "computer", NAME))
        assert member is not None
        assert member.record is not None
        last = member.revision
        await write_member(store.members, record_key(OFFICE, "computer", NAME), tombstone(member.record), last=last)
        # another may have had it meanwhile, and have run calls
        await eventually(lambda: here.seat.held_since != since)
        assert lost


@pytest.mark.rule("events.flow.discovery.1", "events.must.computer.rooms", "computer.architecture.1")
async def test_a_computer_joins_as_soon_as_a_registry_is_up(nats_url: str) -> None:
    async with computer(nats_url, joined=False) as here:
        assert here.membership.problem is not None
        async with registry(nats_url):
            await asyncio.wait_for(here.membership.has_joined.wait(), 30)


async def test_leaving_waits_for_the_calls_that_run(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with registry(nats_url), open_bus(BusConfig(url=nats_url)) as agent:
        async with computer(nats_url, {"box": configs.stdio(log=log)}) as opened:
            here = World(opened, agent)
            running = asyncio.create_task(here.call("sleep", seconds=1))
            await eventually(log.exists)
        assert (await running)["isError"] is False


async def test_the_seat_is_claimed_again_after_nats_lost_its_store(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with registry(url) as rooms, computer(url) as here:
        await nats_server.restart_empty()
        await eventually(lambda: bool(list(rooms.view.members(OFFICE))), timeout=30)
        await eventually(lambda: here.membership.problem is None)
        async with computer(url, joined=False) as second:
            await eventually(lambda: (second.membership.problem or "").startswith("refused: "))
            assert here.membership.problem is None


async def test_it_waits_and_answers_once_nats_is_back(nats_server: NatsServer) -> None:
    settings = ComputerSettings(
        nats_url=nats_server.url, config=Path("unused"), office="home", name="red", drain_s=1.0, lease_s=2.0
    )
    config = parse_config('{"servers": {}}')
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        await nats_server.kill()
        await eventually(lambda: not bus.connected)
        back = asyncio.create_task(nats_server.start())
        async with within(60), open_computer(settings, bus, config=config, environ={}):
            await back
            reply = await bus.request("smcp.v1.home.client.red.get_config", b"{}", timeout=30)
            assert b'"code":503' in reply.body, "it serves its subject, and is not in its office yet"


@pytest.mark.parametrize("why", ["the office has a Computer named 'pc'", "403 the key or token is not for this name"])
def test_a_refused_name_is_told_with_the_option_that_chooses_another(why: str) -> None:
    assert hinted(why) == f"{why}; choose another name with --name (SMCP_NAME)"
    assert hinted("a token is needed: auth.token").endswith("; set it with --token-file or SMCP_TOKEN")
    assert hinted("403 the key or token is not for this office") == "403 the key or token is not for this office"
