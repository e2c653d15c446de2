"""Since when the office's Agent is who it is: asked by the owner of a Computer that may have missed its leave."""

import pytest

from smcp_bus.headers import AFTER
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.registry_contract import Assertion, AssertOutcome, Joined, Member
from smcp_proto.errors import NotInOffice, Unavailable
from smcp_registry.records import record_key
from smcp_registry.store import open_store, read_member, write_member
from smcp_testing.member_process import MemberProcess, member_process
from smcp_testing.registry_world import asking, registries, send


def epoch(joined: Joined) -> int:
    """Of what an Agent subscribes to that joined so."""
    return 2 * joined.revision + 1


async def since(box: MemberProcess, joined: Joined) -> int:
    """As the box is told that knows of that join."""
    answer = await box.registry.agent_since("lab", "box", after=joined.revision)
    assert answer is not None
    return answer


async def test_it_lies_between_an_agents_membership_and_all_that_were_before(nats_url: str) -> None:
    async with (
        registries(nats_url),
        member_process(nats_url) as box,
        member_process(nats_url) as first,
        member_process(nats_url) as second,
    ):
        there = await box.join("lab", "computer", "box")
        assert await box.registry.agent_since("lab", "box", after=there.revision) is None
        earlier = await first.join("lab", "agent", "bot")
        assert await since(box, earlier) <= epoch(earlier)
        await first.leave("lab", "agent", "bot")
        came_back = await first.join("lab", "agent", "bot")
        assert epoch(earlier) < await since(box, came_back) <= epoch(came_back)
        first.sessions.clear()  # its client is gone, and it has not said so
        later = await second.join("lab", "agent", "bot")
        assert epoch(came_back) < await since(box, later) <= epoch(later)


async def test_an_agent_that_moves_keeps_it_and_what_it_says_anew_changes_nothing(nats_url: str) -> None:
    async with (
        registries(nats_url),
        member_process(nats_url) as box,
        member_process(nats_url) as old,
        member_process(nats_url) as new,
    ):
        await box.join("lab", "computer", "box")
        claim = old.claim(identity="bot's", announce=False)
        began = await since(box, await old.join("lab", "agent", "bot", claim))
        announced = claim.model_copy(update={"announce": True})
        assert await since(box, await old.join("lab", "agent", "bot", announced)) == began
        moving = Member(office="lab", role="agent", name="bot", claim=announced, moving=True)
        (answer,) = (await old.registry.assert_members(Assertion(members=[moving]))).members
        assert answer.outcome is AssertOutcome.UNCHANGED
        moved = await new.join("lab", "agent", "bot", new.claim(identity="bot's"))
        assert moved.taken_up
        assert await since(box, moved) == began
        again = await new.join("lab", "agent", "bot", new.claim(identity="bot's", incarnation="2"))
        assert await since(box, again) == began
        await new.leave("lab", "agent", "bot", new.claim(incarnation="2"))
        later = await new.join("lab", "agent", "bot", new.claim(incarnation="3"))
        assert epoch(again) < await since(box, later) <= epoch(later)


async def test_of_an_agent_that_joined_at_an_older_registry_it_is_not_known(nats_url: str) -> None:
    async with (
        registries(nats_url),
        member_process(nats_url) as box,
        member_process(nats_url) as agent,
        open_bus(BusConfig(url=nats_url)) as bus,
    ):
        await box.join("lab", "computer", "box")
        await agent.join("lab", "agent", "bot")
        store, key = await open_store(bus, bus.jetstream(), lease_s=10.0, replicas=1), record_key("lab", "agent", "bot")
        stored = await read_member(store.members, key)
        assert stored.record is not None
        older = stored.record.model_copy(update={"began_after": None})
        revision = await write_member(store.members, key, older, last=stored.revision)
        assert await box.registry.agent_since("lab", "box", after=revision) is None
        again = await agent.join("lab", "agent", "bot", agent.claim(incarnation="2"))
        assert await box.registry.agent_since("lab", "box", after=again.revision) is None


async def test_it_is_said_to_members_as_new_as_they_ask_for_or_not_at_all(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as box, asking(nats_url) as bus:
        joined = await box.join("lab", "computer", "box")
        with pytest.raises(NotInOffice):
            await box.registry.agent_since("lab", "another", after=joined.revision)
        assert await send(bus, "lab", "computer", "box", "find", {"computer": "box"}, **{AFTER: "soon"}) == 400
        with pytest.raises(Unavailable):
            await box.registry.agent_since("lab", "box", after=joined.revision + 1)
