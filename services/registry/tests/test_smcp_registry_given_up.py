"""What an owner and a claimant are asked, so that a late join makes no member and no session keeps another's place."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR
from smcp_bus.nats_bus import BusConfig, open_bus
from smcp_proto.errors import NotAllowed, NotInOffice
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings
from smcp_testing.member_process import member_process, observe
from smcp_testing.waiting import eventually


@asynccontextmanager
async def registry(url: str) -> AsyncIterator[None]:
    async with open_bus(BusConfig(url=url)) as bus, open_registry(RegistrySettings(nats_url=url, lease_s=10), bus):
        yield


async def test_a_join_that_comes_after_it_was_given_up_unheard_makes_no_member(nats_url: str) -> None:
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


async def test_an_owner_is_asked_after_the_place_and_an_older_one_after_the_session_alone(nats_url: str) -> None:
    async with registry(nats_url), member_process(nats_url) as heir, open_bus(BusConfig(url=nats_url)) as bus:
        questions: list[dict[str, str]] = []

        async def alive(incoming: Incoming) -> Reply:
            question = orjson.loads(incoming.body)
            questions.append(question)
            if set(question) != {"session"}:
                return Reply(b'{"code":400,"message":"office: unknown"}', {ERROR: "400"})
            return Reply(b'{"session":false}')

        await bus.serve(subjects.hosts("open", "older", "alive"), alive)
        claim = heir.claim().model_copy(update={"process": "older", "session": "s0"})
        await heir.join("lab", "computer", "pc", claim)
        assert not (await heir.join("lab", "computer", "pc")).unchanged
        place = {"office": "lab", "role": "computer", "name": "pc"}
        assert questions == [{"session": "s0", **place}, {"session": "s0"}]
