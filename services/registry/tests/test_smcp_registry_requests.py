"""Requests of members beside joins and leaves, and which of them are refused."""

import asyncio

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import AFTER, CLAIM, ERROR, NOTIFICATION_ID, REQ_ID
from smcp_bus.registry_contract import Assertion, AssertOutcome, Member
from smcp_proto.errors import Malformed, NotInOffice
from smcp_registry.app import handled_once
from smcp_testing.member_process import member_process, observe
from smcp_testing.nats_process import NatsServer
from smcp_testing.registry_world import asking, registries, send
from smcp_testing.waiting import eventually

OWNER = {"session": "s", "credential": "c", "process": "p", "incarnation": "i", "identity": "i"}


@pytest.mark.rule("answers.rooms.list.both-roles", "answers.rooms.list.own-office")
async def test_only_members_list_a_room(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member, asking(nats_url) as bus:
        await member.join("lab", "computer", "pc")
        body = {"agent": "pc", "req_id": "r", "office_id": "lab"}
        assert await send(bus, "lab", "computer", "pc", "list_room", body) is None
        assert await send(bus, "lab", "computer", "pc", "list_room", body | {"office_id": "lab2"}) == 403
        assert await send(bus, "lab", "computer", "nobody", "list_room", body | {"agent": "nobody"}) == 4103
        assert await send(bus, "lab", "agent", "alice", "list_room", body) == 4103
        assert await send(bus, "lab", "computer", "pc", "list_room", body, **{AFTER: "soon"}) == 400


async def test_a_join_whose_body_names_another_seat_is_refused_and_names_the_field(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member, asking(nats_url) as bus:
        claim = {CLAIM: member.claim().model_dump_json()}
        body = {"role": "computer", "name": "pc", "office_id": "lab"}
        for field, value in (("role", "agent"), ("name", "other"), ("office_id", "lab2")):
            reply = await bus.request(
                subjects.server("lab", "computer", "pc", "join_office"),
                orjson.dumps(body | {field: value}), timeout=30, headers=claim,
            )  # fmt: skip
            assert reply.headers[ERROR] == "403"
            assert orjson.loads(reply.body)["details"] == {"field": field}
        assert await send(bus, "lab", "computer", "pc", "join_office", {"role": "computer"}, **claim) == 400
        assert await send(bus, "lab", "computer", "pc", "leave_office", {"office_id": "lab2"}, **claim) == 4103


@pytest.mark.parametrize(
    "claim",
    [
        None,
        "not json",
        "{}",
        orjson.dumps(OWNER | {"session": ""}).decode(),
        orjson.dumps(OWNER | {"process": "*"}).decode(),
        orjson.dumps(OWNER | {"process": "a.b"}).decode(),
        orjson.dumps(OWNER | {"credential": ""}).decode(),
        orjson.dumps(OWNER | {"session": "s" * 513}).decode(),
        orjson.dumps(OWNER | {"a2c_version": "4" * 513}).decode(),
        orjson.dumps(OWNER | {"capabilities": {"x": [[]] * 8000}}).decode(),
        orjson.dumps(OWNER | {"capabilities": {"x": [[]] * 80_000}}).decode(),
    ],
)
async def test_a_claim_with_an_unusable_owner_name_is_malformed(nats_url: str, claim: str | None) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        headers = {} if claim is None else {CLAIM: claim}
        body = {"role": "computer", "name": "pc", "office_id": "lab"}
        assert await send(bus, "lab", "computer", "pc", "join_office", body, **headers) == 400


async def test_a_claim_with_unknown_fields_of_a_newer_process_joins(nats_url: str) -> None:
    async with registries(nats_url, count=1), member_process(nats_url) as member, asking(nats_url) as bus:
        claim = orjson.dumps({**member.claim().model_dump(), "since": "a later version"}).decode()
        body = {"role": "computer", "name": "pc", "office_id": "lab"}
        assert await send(bus, "lab", "computer", "pc", "join_office", body, **{CLAIM: claim}) is None
        asked = {"computer": "pc", "since": "a later version"}
        assert await send(bus, "lab", "computer", "pc", "find", asked) is None


async def test_copies_of_a_request_wait_for_the_answer_to_the_first(nats_url: str) -> None:
    async with (
        registries(nats_url, count=1),
        member_process(nats_url) as owner,
        member_process(nats_url) as heir,
        asking(nats_url) as bus,
    ):
        await owner.join("lab", "computer", "pc")
        owner.answering.clear()
        body = {"role": "computer", "name": "pc", "office_id": "lab"}

        def ask(req_id: str) -> asyncio.Task[int | None]:
            headers = {CLAIM: heir.claim().model_dump_json(), REQ_ID: req_id}
            return asyncio.create_task(send(bus, "lab", "computer", "pc", "join_office", body, **headers))

        asked = [ask("r1") for _ in range(5)]
        await eventually(lambda: owner.asked)
        assert await send(bus, "lab", "computer", "pc", "find", {"computer": "pc"}) is None  # they have come, too
        assert owner.asked == 1
        asked.append(ask("r2"))
        await eventually(lambda: owner.asked == 2)
        owner.answering.set()
        assert await asyncio.gather(*asked) == 6 * [403]
        assert await ask("r1") == 403
        assert owner.asked == 3


async def test_copies_of_a_request_fail_as_the_first_does() -> None:
    handled, fails = 0, asyncio.Event()

    async def handle(_: Incoming) -> Reply:
        nonlocal handled
        handled += 1
        await fails.wait()
        raise ValueError("the store")

    once = handled_once(handle)
    asked = [asyncio.ensure_future(once(Incoming("subject", b"{}", {REQ_ID: "r"}, None))) for _ in range(3)]
    await eventually(lambda: handled)
    fails.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert (handled, [str(outcome) for outcome in outcomes]) == (1, 3 * ["the store"])


async def test_a_claim_is_confirmed_while_it_stands(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member, member_process(nats_url) as other:
        joined = await member.join("lab", "computer", "pc")

        async def confirmed() -> bool:
            state = await member.registry.confirm(("lab", "computer", "pc"), member.claim())
            return state.mine and state.view >= joined.revision

        await eventually(confirmed)
        assert not await member.holds("lab", "computer", "pc", member.claim(incarnation="2"))
        assert not await other.holds("lab", "computer", "pc")


async def test_a_computer_is_found_only_in_its_own_office(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member:
        await member.join("lab", "agent", "alice")
        for number in range(20):
            await member.join("lab", "computer", f"pc{number}")
            found = await member.registry.find(("lab", "agent", "alice"), f"pc{number}", timeout=30)
            assert (found.member, found.moving) == (True, False)
        assert not (await member.registry.find(("lab", "agent", "alice"), "alice", timeout=30)).member
        for office, asker in (("lab2", "alice"), ("lab", "bob")):
            with pytest.raises(NotInOffice):
                await member.registry.find((office, "agent", asker), "pc1", timeout=30)


async def test_a_computer_is_found_without_quorum_if_the_view_knows_the_caller(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with registries(url, count=1) as [registry], member_process(url) as member, asking(url) as bus:
        await member.join("lab", "agent", "alice")
        joined = await member.join("lab", "computer", "pc")
        assert await registry.view.reached(joined.revision, 5)
        # a stream that is gone does not answer either; the view stays until its watch notices
        await bus.jetstream().delete_stream("KV_members")
        assert (await member.registry.find(("lab", "agent", "alice"), "pc", timeout=30)).member
        with pytest.raises(NotInOffice):
            await member.registry.find(("lab", "agent", "bob"), "pc", timeout=30)


@pytest.mark.rule(
    "events.{update_config.broadcast,update_tool_list.broadcast,update_desktop.broadcast}",
    "events.update_finder.broadcast",
    "answers.unknown.update",
)
@pytest.mark.parametrize(
    "verb", ["update_config", "update_tool_list", "update_desktop", "update_finder", "update_skills"]
)
async def test_an_update_of_a_computer_is_published_to_its_office(nats_url: str, verb: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member:
        observer = await observe(member.bus, "lab")
        await member.join("lab", "computer", "pc")
        await member.registry.tell(("lab", "computer", "pc"), verb, b'{"computer":"pc","more":[1]}')
        await eventually(lambda: observer.notices)
        assert [(told, orjson.loads(body)) for told, body in observer.notices] == [
            (verb, {"computer": "pc", "more": [1]})
        ]


@pytest.mark.rule("events.update_tool_list.request.computer")
@pytest.mark.parametrize("verb", ["update_tool_list", "update_skills"])
async def test_an_update_without_a_computer_name_is_published_with_it(nats_url: str, verb: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member:
        observer = await observe(member.bus, "lab")
        await member.join("lab", "computer", "机器 1")
        await member.registry.tell(("lab", "computer", "机器 1"), verb, b'{"more":[1]}')
        await eventually(lambda: observer.notices)
        assert [(told, orjson.loads(body)) for told, body in observer.notices] == [
            (verb, {"computer": "机器 1", "more": [1]})
        ]


async def test_a_long_id_of_a_notification_is_not_passed_on(nats_url: str) -> None:
    heard: asyncio.Queue[Incoming] = asyncio.Queue()
    async with registries(nats_url, count=1), member_process(nats_url) as member, asking(nats_url) as bus:
        await member.join("lab", "computer", "pc")
        await bus.listen(subjects.notify("lab", "update_config"), heard.put)
        long = {NOTIFICATION_ID: "1" * 500_000}
        assert await send(bus, "lab", "computer", "pc", "update_config", {"computer": "pc"}, **long) is None
        async with asyncio.timeout(10):
            assert len((await heard.get()).headers[NOTIFICATION_ID]) <= 64


@pytest.mark.rule("answers.capabilities.update", "answers.resources.capabilities")
async def test_changed_capabilities_are_published_and_listed(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member:
        observer = await observe(member.bus, "lab")
        await member.join("lab", "computer", "pc")
        capabilities = {"resources": {"supported": True}}
        body = orjson.dumps({"computer": "pc", "capabilities": capabilities})
        await member.registry.tell(("lab", "computer", "pc"), "update_capabilities", body)
        await eventually(lambda: [verb for verb, _ in observer.notices] == ["update_capabilities"])

        async def listed() -> bool:
            room = await member.registry.room(("lab", "computer", "pc"), after=0, req_id="r")
            [session] = room.sessions
            return session.capabilities is not None

        await eventually(listed)
        assert observer.of("pc") == ["enter_office"]


@pytest.mark.rule(
    "events.list.{server:update_config.sender,server:tool_call_cancel.sender}",
    "events.notify.tool_call_cancel.told",
    "answers.who.{computer,other-fields,cancel,updates}",
)
async def test_an_update_or_cancel_for_another_member_is_refused(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member, asking(nats_url) as bus:
        observer = await observe(member.bus, "lab")
        await member.join("lab", "computer", "pc")
        await member.join("lab", "agent", "alice", member.claim("s2"))
        cancel = {"agent": "alice", "req_id": "r"}
        assert await send(bus, "lab", "computer", "pc", "update_config", {"computer": "other"}) == 403
        assert await send(bus, "lab", "computer", "pc", "update_skills", {"computer": "other"}) == 403
        for forged in ({"agent": "alice"}, {"office_id": "other"}, {"roomId": "other"}, {"computerId": "other"}):
            for verb in ("update_config", "update_skills"):
                assert await send(bus, "lab", "computer", "pc", verb, {"computer": "pc", **forged}) == 403
        assert await send(bus, "lab", "computer", "pc", "update_config", {}) == 400
        assert await send(bus, "lab", "agent", "alice", "update_config", {"computer": "pc"}) == 403
        assert await send(bus, "lab", "computer", "nobody", "update_config", {"computer": "nobody"}) == 4103
        assert await send(bus, "lab", "computer", "pc", "tool_call_cancel", cancel) == 403
        assert await send(bus, "lab", "agent", "alice", "tool_call_cancel", cancel | {"agent": "bob"}) is None
        assert await send(bus, "lab2", "agent", "alice", "tool_call_cancel", cancel) == 4103
        assert await send(bus, "lab", "agent", "alice", "no_such_verb", {}) == 400
        assert await send(bus, "lab", "agent", "alice", "tool_call_cancel", cancel | {"more": 1}) is None
        await eventually(lambda: len(observer.notices) >= 2)
        assert [(told, orjson.loads(body)) for told, body in observer.notices] == 2 * [("tool_call_cancel", cancel)]


async def test_an_assertion_announces_only_lost_members(nats_url: str) -> None:
    async with (
        registries(nats_url, count=1) as [registry],
        member_process(nats_url) as gateway,
        member_process(nats_url) as other,
    ):
        observer = await observe(gateway.bus, "lab")
        stands = await gateway.join("lab", "computer", "stands", gateway.claim("s1"))
        await gateway.join("lab", "computer", "lost", gateway.claim("s2"))
        await gateway.leave("lab", "computer", "lost", gateway.claim("s2"))
        taken = await other.join("lab", "computer", "taken")
        await eventually(lambda: registry.view.revision >= taken.revision)  # an assertion is decided by the view
        foreign = other.claim().model_copy(update={"session": "x"})
        members = [
            Member(office="lab", role="computer", name="stands", claim=gateway.claim("s1")),
            Member(office="lab", role="computer", name="lost", claim=gateway.claim("s2")),
            Member(office="lab", role="computer", name="taken", claim=gateway.claim("s3")),
            Member(office="lab", role="computer", name="foreign", claim=foreign),
        ]
        result = await gateway.registry.assert_members(Assertion(members=members))
        assert [member.outcome for member in result.members] == [
            AssertOutcome.UNCHANGED, AssertOutcome.CLAIMED, AssertOutcome.REFUSED, AssertOutcome.REFUSED,
        ]  # fmt: skip
        assert result.members[0].revision == stands.revision
        assert "already" in str(result.members[2].why)
        again = await gateway.registry.assert_members(Assertion(members=members[:2]))
        assert {member.outcome for member in again.members} == {AssertOutcome.UNCHANGED}
        await eventually(lambda: observer.of("lost") == ["enter_office", "leave_office", "enter_office"])
        assert observer.of("stands") == ["enter_office"]
        assert observer.of("foreign") == []


async def test_a_process_with_an_illegal_name_gets_no_lease(nats_url: str) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        reply = await bus.request("smcp.hosts.v1.c.=2E.lease", b"{}", timeout=30)
        assert reply.headers[ERROR] == "400"


async def test_a_malformed_request_names_the_field(nats_url: str) -> None:
    async with registries(nats_url, count=1), member_process(nats_url) as member:
        with pytest.raises(Malformed) as refused:
            await member.registry.join(("lab", "computer", "pc"), member.claim(), b'{"role":"computer","name":"pc"}')
        assert "office_id" in str(refused.value.details) or "office_id" in refused.value.message


async def test_a_member_that_joins_and_leaves_in_a_loop_is_429_and_others_of_its_office_are_served(
    nats_url: str,
) -> None:
    async with (
        registries(nats_url, count=1, registry_room_events_per_s=2.0),  # of a member two at once, then one in 2.5 s
        member_process(nats_url) as member,
        asking(nats_url) as bus,
    ):
        body = {"role": "computer", "name": "pc", "office_id": "lab"}
        claim = {CLAIM: member.claim().model_dump_json()}
        codes = []
        for _ in range(20):
            codes.append(await send(bus, "lab", "computer", "pc", "join_office", body, **claim))
            await send(bus, "lab", "computer", "pc", "leave_office", {"office_id": "lab"}, **claim)
        assert codes[:2] == [None, None]
        assert codes.count(429) >= 10
        await member.join("lab", "computer", "quiet")
        asked = {"agent": "quiet", "req_id": "r", "office_id": "lab"}
        assert await send(bus, "lab", "computer", "quiet", "list_room", asked) is None


EVENTS = ("server:join_office", "server:list_room", "server:leave_office")


async def test_joins_lists_and_leaves_are_traces_of_their_own(nats_url: str, exported: InMemorySpanExporter) -> None:
    async with registries(nats_url, count=1), member_process(nats_url) as member:
        joined = await member.join("lab", "computer", "pc")
        await member.room("lab", "computer", "pc", after=joined.revision)
        await member.leave("lab", "computer", "pc")

        def roots() -> dict[str, ReadableSpan]:
            spans = [span for span in exported.get_finished_spans() if span.kind is SpanKind.CONSUMER]
            return {str((span.attributes or {}).get("smcp.event")): span for span in spans if span.parent is None}

        await eventually(lambda: set(EVENTS) <= set(roots()))
        found = roots()
    assert {event: found[event].name for event in EVENTS} == {
        event: f"process smcp.v1.{{office}}.server.computer.{{name}}.{event.removeprefix('server:')}"
        for event in EVENTS
    }
    assert len({span.context.trace_id for span in found.values() if span.context}) == len(found)
