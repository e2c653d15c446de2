"""Questions to owners and claimants: a late join makes no member, and no session keeps another's seat."""

import asyncio
from functools import partial

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import CLAIM, ERROR
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_proto.errors import NotAllowed, NotInOffice
from smcp_testing.member_process import MemberProcess, member_process, observe
from smcp_testing.registry_world import registries
from smcp_testing.waiting import eventually

registry = partial(registries, count=1)


@pytest.mark.rule("answers.rooms.admission.late")
async def test_a_join_that_arrives_after_its_claim_was_given_up_makes_no_member(nats_url: str) -> None:
    async with registry(nats_url), member_process(nats_url) as member:
        observer = await observe(member.bus, "lab")
        unheard = member.claim(incarnation="unheard")
        member.given_up.add("unheard")
        with pytest.raises(NotInOffice):
            await member.leave("lab", "computer", "pc", unheard)
        with pytest.raises(NotAllowed):
            await member.join("lab", "computer", "pc", unheard)
        await member.join("lab", "computer", "pc", member.claim(incarnation="next"))
        await eventually(lambda: observer.of("pc") == ["enter_office"])


async def test_an_owner_is_asked_for_the_seat(nats_url: str) -> None:
    async with registry(nats_url), member_process(nats_url) as heir, open_bus(BusConfig(url=nats_url)) as bus:
        questions: list[dict[str, str]] = []

        async def alive(incoming: Incoming) -> Reply:
            question = orjson.loads(incoming.body)
            questions.append(question)
            return Reply(b'{"session":false}')

        await bus.serve(subjects.hosts("open", "older", "alive"), alive)
        claim = heir.claim().model_copy(update={"process": "older", "session": "s0"})
        await heir.join("lab", "computer", "pc", claim)
        assert not (await heir.join("lab", "computer", "pc")).unchanged
        place = {"office": "lab", "role": "computer", "name": "pc"}
        assert questions == [{"session": "s0", **place}]


async def used_place(other: MemberProcess) -> None:
    """Somebody was there before: who asks for it is asked whether it means it."""
    await other.join("lab", "computer", "pc")
    await other.leave("lab", "computer", "pc")


async def test_a_slow_claimant_is_asked_again_and_is_no_member_before_it_confirms(nats_url: str) -> None:
    async with registry(nats_url), member_process(nats_url) as member, member_process(nats_url) as other:
        await used_place(other)
        await other.join("lab", "computer", "watcher", other.claim("watcher"))
        await member.renew()
        member.answering.clear()
        joining = asyncio.create_task(member.join("lab", "computer", "pc"))
        # asked at once and every second, by as many questions as the join was put in
        await eventually(lambda: member.asked >= 8)
        assert not joining.done()
        assert await other.room("lab", "computer", "watcher") == {("computer", "watcher")}
        member.answering.set()
        await joining
        assert await other.room("lab", "computer", "watcher") == {("computer", "watcher"), ("computer", "pc")}


async def test_a_claimant_that_never_confirms_makes_no_member(nats_url: str) -> None:
    async with registry(nats_url), member_process(nats_url) as member, member_process(nats_url) as other:
        await used_place(other)
        await member.renew()
        member.answering.clear()
        body = orjson.dumps({"role": "computer", "name": "pc", "office_id": "lab"})
        claim = member.claim().model_dump_json()
        subject = subjects.server("lab", "computer", "pc", "join_office")
        # a copy that waited somewhere, and whose time counts from when it comes
        reply = await member.bus.request(subject, body, timeout=3, headers={CLAIM: claim})
        assert reply.headers[ERROR] == "503"
        await other.join("lab", "computer", "watcher", other.claim("watcher"))
        assert await other.room("lab", "computer", "watcher") == {("computer", "watcher")}
