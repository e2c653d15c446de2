"""What operators ask of a registry: the offices, and who is in one. They are members of none."""

import time
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
import pytest
from nats.js import api
from pydantic import BaseModel

from smcp_bus import subjects
from smcp_bus.audit import STREAM
from smcp_bus.headers import ERROR
from smcp_bus.registry_contract import (
    Assertion,
    AssertOutcome,
    Member,
    Offices,
    OfficesQuestion,
    Records,
    RecordsQuestion,
    Room,
    RoomQuestion,
)
from smcp_proto.errors import NotAllowed
from smcp_registry.audit import PAGE
from smcp_registry.members_view import Entry
from smcp_testing.member_process import MemberProcess, member_process
from smcp_testing.registry_world import asking, registries
from smcp_testing.waiting import eventually

Model = TypeVar("Model", bound=BaseModel)


async def asked(url: str, verb: str, question: BaseModel, answer: type[Model]) -> Model:
    async with asking(url) as bus:
        reply = await bus.request(subjects.operators("me", verb), question.model_dump_json().encode(), timeout=30)
    assert ERROR not in reply.headers, reply.body
    return answer.model_validate_json(reply.body)


async def room(url: str, office: str, **question: Any) -> Room:
    return await asked(url, "room", RoomQuestion(office=office, **question), Room)


async def offices(url: str, **question: Any) -> Offices:
    return await asked(url, "offices", OfficesQuestion(**question), Offices)


async def test_an_operator_sees_offices_and_members_and_is_none(nats_url: str) -> None:
    async with registries(nats_url, count=1), member_process(nats_url) as member:
        assert await offices(nats_url) == Offices(offices=[], more=False)
        began = datetime.now(UTC).replace(microsecond=0)
        await member.join("lab", "agent", "anna")
        await member.join("lab", "computer", "pc", member.claim("s2"))
        await member.join("lab", "computer", "hidden", member.claim("s3", announce=False))
        await member.join("attic", "computer", "pc", member.claim("s4"))
        await eventually(lambda: all_are_seen(nats_url))
        seen = await room(nats_url, "lab")
        assert [(each.role, each.name, each.by) for each in seen.members] == [
            ("agent", "anna", "open"),
            ("computer", "pc", "open"),
        ]
        for each in seen.members:
            assert each.since is not None
            assert began <= datetime.fromisoformat(each.since) <= datetime.now(UTC)
        listed = {each.office: (each.agent, each.computers) for each in (await offices(nats_url)).offices}
        assert listed == {"lab": ("anna", 1), "attic": (None, 1)}
        assert (await room(nats_url, "nowhere")).members == []


async def all_are_seen(url: str) -> bool:
    """The view lags behind the store."""
    return len((await room(url, "lab")).members) == 2 and len((await room(url, "attic")).members) == 1


async def test_offices_come_in_pages_by_name(nats_url: str) -> None:
    async with registries(nats_url, count=1) as [registry], member_process(nats_url) as member:
        for name in ("c", "a", "b"):
            await member.join(name, "computer", "pc", member.claim(name))
        await eventually(lambda: len(registry.view.offices) == 3)
        first = await offices(nats_url, limit=2)
        assert ([each.office for each in first.offices], first.more) == (["a", "b"], True)
        rest = await offices(nats_url, after="b", limit=2)
        assert ([each.office for each in rest.offices], rest.more) == (["c"], False)


async def test_members_come_in_pages_the_agent_first(nats_url: str) -> None:
    async with registries(nats_url, count=1) as [registry], member_process(nats_url) as member:
        await member.join("lab", "agent", "z")
        for name in ("c", "a"):
            await member.join("lab", "computer", name, member.claim(name))
        await eventually(lambda: len(list(registry.view.members("lab"))) == 3)
        first = await room(nats_url, "lab", limit=2)
        assert ([each.name for each in first.members], first.more) == (["z", "a"], True)
        rest = await room(nats_url, "lab", after=("computer", "a"), limit=2)
        assert ([each.name for each in rest.members], rest.more) == (["c"], False)


@pytest.mark.parametrize("office", ["", "a\nb", "x" * 10_000, 5])
async def test_an_office_that_no_name_can_be_is_refused_by_its_field(nats_url: str, office: object) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        reply = await bus.request(subjects.operators("me", "room"), orjson.dumps({"office": office}), timeout=30)
        assert reply.headers[ERROR] == "400"
        assert orjson.loads(reply.body)["details"]["field"] == "office"


async def refused(member: MemberProcess, name: str) -> NotAllowed:
    with pytest.raises(NotAllowed) as error:
        await member.join("lab", "agent", name)
    return error.value


@pytest.mark.rule("events.join_office.agent.only-one")
async def test_a_second_agent_learns_who_has_the_seat_and_since_when(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as one, member_process(nats_url) as other:
        await one.join("lab", "agent", "anna\u202e")
        refusal = await refused(other, "bob")
        since = refusal.details["since"]
        assert refusal.message == f"the office already has an Agent: 'anna\ufffd', since {since}"
        assert refusal.details["holder"] == "anna\u202e"
        assert (await refused(other, "bob")).details["since"] == since


async def records(url: str, **question: Any) -> Records:
    return await asked(url, "records", RecordsQuestion(**question), Records)


@pytest.mark.parametrize(("audit", "discard"), [("on", "old"), ("required", "new")])
async def test_the_stream_keeps_records_as_long_as_the_settings_say_and_drops_none_if_they_are_required(
    nats_url: str, audit: str, discard: str
) -> None:
    limits = {"audit_keep_days": 2, "audit_max_bytes": 3 * 1024 * 1024}
    async with registries(nats_url, audit=audit, **limits), asking(nats_url) as bus:
        config = (await bus.jetstream().stream_info(STREAM)).config
    assert (config.max_age, config.max_bytes, config.discard) == (2 * 86_400, 3 * 1024 * 1024, discard)
    assert (config.storage, config.num_replicas) == ("file", 1)


async def test_records_come_in_pages_as_they_were_written(nats_url: str) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        js = bus.jetstream()
        await js.add_stream(name=STREAM, subjects=[subjects.AUDIT_ALL])
        assert await records(nats_url) == Records(records=[], first=0, last=0, deleted=0, may_expire=False)
        for number in range(PAGE + 2):
            await js.publish(subjects.audit("lab", "call"), b"\xff%d" % number)
        await js.publish(subjects.audit("attic", "join"), b"{}")
        await js.delete_msg(STREAM, 2)
        page = await records(nats_url)
        assert (page.first, page.last, page.deleted) == (1, PAGE + 3, 1)
        assert [each.seq for each in page.records] == [1, *range(3, PAGE + 2)]
        rest = await records(nats_url, after=page.records[-1].seq)
        assert [(each.raw, each.subject) for each in rest.records] == [
            (b"\xff%d" % (PAGE + 1), "smcp.v1.lab.audit.call"),
            (b"{}", "smcp.v1.attic.audit.join"),
        ]
        joins = await records(nats_url, subject="smcp.v1.*.audit.join")
        assert [each.seq for each in joins.records] == [PAGE + 3]
        assert (await records(nats_url, after=PAGE + 3)).records == []
        await js.publish(subjects.AUDIT_OF_SEVERAL, b"{}\n{}")
        for question in ({}, {"subject": "smcp.v1.*.audit.leave"}, {"subject": "smcp.v1.yard.audit.*"}):
            [several] = (await records(nats_url, after=PAGE + 3, **question)).records
            assert several.subject == subjects.AUDIT_OF_SEVERAL
        await js.delete_msg(STREAM, PAGE + 4)
        now = int(time.time())
        assert [each.seq for each in (await records(nats_url, since=now - 3600)).records][:2] == [1, 3]
        assert (await records(nats_url, since=now + 3600)).records == []
        assert [each.seq for each in (await records(nats_url, since=now + 3600, after=PAGE + 2)).records] == [PAGE + 3]
        assert not await js.consumers_info(STREAM)


@pytest.mark.parametrize(
    ("limits", "may_expire"),
    [
        ({}, False),
        ({"max_age": 3600, "max_bytes": 1_000_000}, False),
        ({"max_age": 0.1}, True),
        ({"max_bytes": 300_000}, True),
        ({"max_bytes": 300_000, "discard": api.DiscardPolicy.NEW}, False),
    ],
)
async def test_records_can_have_expired_if_their_stream_is_old_or_full(
    nats_url: str, limits: dict[str, Any], may_expire: bool
) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        js = bus.jetstream()
        await js.add_stream(name=STREAM, subjects=[subjects.AUDIT_ALL], **limits)
        await js.publish(subjects.audit("lab", "call"), bytes(100_000))

        async def is_said() -> bool:
            return (await records(nats_url)).may_expire is may_expire

        await eventually(is_said)


async def test_a_page_of_large_records_is_one_message_since_an_operator_may_not_fetch_parts(nats_url: str) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        js = bus.jetstream()
        await js.add_stream(name=STREAM, subjects=[subjects.AUDIT_ALL])
        sizes = [8_000] * 100 + [300_000] * 3
        for size in sizes:
            await js.publish(subjects.audit("lab", "call"), bytes(size))
        read: list[int] = []
        while len(read) < len(sizes):
            after = RecordsQuestion(after=len(read)).model_dump_json().encode()
            body = (await bus.request(subjects.operators("me", "records"), after, timeout=30)).body
            read += [len(each.raw) for each in Records.model_validate_json(body).records]
        assert read == sizes
        assert bus.transfers.counts["in"] == 0


async def test_a_page_is_full_of_usual_records(nats_url: str) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        js = bus.jetstream()
        await js.add_stream(name=STREAM, subjects=[subjects.AUDIT_ALL])
        for _ in range(PAGE + 1):
            await js.publish(subjects.audit("lab", "call"), bytes(550))
        assert len((await records(nats_url)).records) > 500


@pytest.mark.parametrize(("question", "code"), [({}, "404"), ({"subject": "$KV.>"}, "400"), ({"after": -1}, "400")])
async def test_records_that_cannot_be_read_are_an_error(nats_url: str, question: dict[str, Any], code: str) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        reply = await bus.request(subjects.operators("me", "records"), orjson.dumps(question), timeout=30)
        assert reply.headers[ERROR] == code


def held_by(entry: Entry | None, process: str) -> list[Entry]:
    return [entry] if entry is not None and entry.record.process == process else []


async def test_a_member_that_moved_is_there_since_it_came(nats_url: str) -> None:
    async with registries(nats_url, count=1) as [registry], member_process(nats_url) as old:
        claim = old.claim(identity="me")
        await old.join("lab", "agent", "anna", claim)
        await eventually(lambda: registry.view.member("lab", "agent", "anna") is not None)
        entry = registry.view.member("lab", "agent", "anna")
        assert entry is not None
        async with member_process(nats_url) as new:
            member = Member(office="lab", role="agent", name="anna", claim=claim, moving=True)
            result = await old.registry.assert_members(Assertion(members=[member]))
            assert result.members[0].outcome is AssertOutcome.UNCHANGED
            assert (await new.join("lab", "agent", "anna", new.claim(identity="me"))).taken_up
            [moved] = await eventually(lambda: held_by(registry.view.member("lab", "agent", "anna"), new.process))
            assert moved.record.since == entry.record.since
