"""Requests that are not what the protocol says: each is refused clearly and at once, and disturbs nobody."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import uuid4

import pytest

from smcp_testing.waiting import Stopwatch
from tests.e2e.actors.bare import BareMember, FlatError, member
from tests.e2e.actors.bystanders import undisturbed
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.world import LAB, World

AT_ONCE_S: Final = 3.0
"""In which a refusal comes, on however loaded a machine; it takes some milliseconds."""

ASKED: Final = {"agent": "caller", "req_id": "r"}
REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "server:join_office": {"role": "agent", "name": "caller", "office_id": LAB},
    "server:leave_office": {"office_id": LAB},
    "server:list_room": {**ASKED, "office_id": LAB},
    "client:tool_call": {**ASKED, "computer": "alpha", "tool_name": "append", "params": {"mark": "no"}, "timeout": 10},
    "client:get_tools": {**ASKED, "computer": "alpha"},
    "client:get_config": {**ASKED, "computer": "alpha"},
}
"""A good request of each event; all fields are required."""
DONE: Final = frozenset({"server:join_office", "server:leave_office"})
"""Events that are acknowledged with `[true, null]` or `[false, "why", details]`."""

NO_STRING: Final = (None, 7, 1.5, True, ["x"], {"x": "y"})
NO_NAME: Final = (*NO_STRING, "", "x" * 129, "x" * 10_000, "a\nb", "\x00")
WRONG: Final[Mapping[str, tuple[Any, ...]]] = {
    "role": (*NO_STRING, "", "robot", "Agent"),
    "name": NO_NAME,
    "office_id": NO_NAME,
    "computer": NO_NAME,
    "req_id": (*NO_STRING, "", "x" * 257, "x" * 10_000, "a\nb"),
    "tool_name": (*NO_STRING, "", "x" * 10_000),
    "params": (None, 7, "x", True, ["x"], []),
    "timeout": (None, "10", 1.5, True, [10], 0, -1, 3601, 10**12),
    # optional, and not ours to guess when they are wrong
    "capabilities": (7, "x", ["x"]),
    "traceparent": (7, ["x"], {}),
}
OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "server:join_office": ("capabilities",),
    "server:list_room": ("traceparent",),
    "client:tool_call": ("traceparent",),
    "client:get_tools": ("traceparent",),
    "client:get_config": ("traceparent",),
}
UNKNOWN: Final = {"nonsense": {"deep": [1, None, {"x": True}]}, "字段": "值", "": 0, "details": 1, "__proto__": {}}
NO_OBJECT: Final[tuple[tuple[Any, ...], ...]] = (
    (), (None,), (1,), ("text",), ([],), ([{}],), ({}, {}), (b"binary",), ({"agent": b"binary"},),
    ({"params": math.nan},),
)  # fmt: skip
"""Arguments that are not one JSON object."""


@pytest.mark.rule("answers.errors.flat", "answers.errors.400")
async def a_missing_field_is_named(world: World) -> None:
    async with _caller(world) as caller:
        for event, good in REQUESTS.items():
            for field in good:
                bad = {name: value for name, value in good.items() if name != field}
                await _refused(caller, event, bad, naming=field)


@pytest.mark.rule("answers.acks.at-once", "answers.errors.400")
async def a_field_of_another_type_is_named(world: World) -> None:
    async with _caller(world) as caller:
        for event, good in REQUESTS.items():
            for field in (*good, *OPTIONAL.get(event, ())):
                for value in WRONG.get(field, ()):  # `agent` is written over
                    await _refused(caller, event, {**good, field: value}, naming=field)


async def requests_before_joining_get_the_same_answer(world: World) -> None:
    stranger = BareMember("agent", LAB, "caller")
    async with undisturbed(world):
        await stranger.connect(world.url(0))
        try:
            for event, good in REQUESTS.items():
                for field in good:
                    bad = {name: value for name, value in good.items() if name != field}
                    await _refused(stranger, event, bad, naming=field)
                    await _refused(stranger, event, {**good, field: 7 if field != "timeout" else "7"}, naming=field)
            await stranger.join()
            assert ("agent", "caller") in await stranger.room()
        finally:
            await stranger.close()


@pytest.mark.rule("answers.errors.400.no-object")
async def a_payload_that_is_not_one_object_is_refused(world: World) -> None:
    async with _caller(world) as caller:
        for event in REQUESTS:
            for arguments in NO_OBJECT:
                await _refused(caller, event, *arguments)
            await _refused(caller, event, {"agent": "\ud800"}, naming="agent")  # no text that JSON may hold


@pytest.mark.rule("answers.large.small-events")
async def a_short_request_above_64_kib_is_413(world: World) -> None:
    async with _caller(world) as caller:
        for event, good in REQUESTS.items():
            if event == "client:tool_call":
                continue
            answer = await _at_once(caller, event, {**good, "more": "x" * 100_000})
            if event in DONE:
                _check_done(answer, "large")
                continue
            error = flat(answer)
            assert (error.code, error.details["limit"]) == (413, 65536), error


@pytest.mark.rule("answers.unknown-fields.relay")
async def unknown_fields_are_accepted(world: World) -> None:
    mark = uuid4().hex
    async with undisturbed(world), member(world.url(0), "agent", LAB, "caller") as caller:
        req_ids = {event: uuid4().hex for event in REQUESTS}

        def request(event: str, **changes: Any) -> dict[str, Any]:
            named = {"req_id": req_ids[event]} if "req_id" in REQUESTS[event] else {}
            return {**UNKNOWN, **REQUESTS[event], **named, **changes}

        assert await caller.ack("server:join_office", request("server:join_office")) == [True, None]
        room = await caller.ask("server:list_room", request("server:list_room"))
        assert room["req_id"] == req_ids["server:list_room"]
        tools = await caller.ask("client:get_tools", request("client:get_tools"))
        assert tools["req_id"] == req_ids["client:get_tools"]
        assert (await caller.ask("client:get_config", request("client:get_config")))["servers"].keys() == {"toolbox"}
        result = await caller.ask("client:tool_call", request("client:tool_call", params={"mark": mark}))
        assert text(result) == mark
        assert await caller.ack("server:leave_office", request("server:leave_office")) == [True, None]
        assert await caller.ack("server:join_office", request("server:join_office")) == [True, None]
    assert world.computer(LAB, "alpha").ran.read_text(encoding="utf-8").split().count(mark) == 1


async def a_payload_that_is_nested_too_deeply_is_refused(world: World) -> None:
    async with _caller(world) as caller:
        pid = text(await caller.call("alpha", "pid"))
        good = REQUESTS["client:tool_call"]
        for depth in (20, 120):
            value = {"value": _nested(depth)}
            result = await caller.call("alpha", "keys", value)
            assert result["structuredContent"] == value["value"]
        for depth in (130, 200, 300):  # bare clients cannot write much more themselves
            await _refused(caller, "client:tool_call", {**good, "params": _nested(depth)}, naming="params")
            for event, request in REQUESTS.items():
                await _refused(caller, event, {**request, "more": _nested(depth)}, naming="more")
        assert text(await caller.call("alpha", "pid")) == pid


def _nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"bottom": [1, "二", None]}
    for _ in range(levels - 2):
        value = {"d": value}
    return value


@pytest.mark.rule("answers.errors.400.no-event")
async def unknown_events_are_refused(world: World) -> None:
    async with _caller(world) as caller:
        for event in (
            "",
            "tool_call",
            "client:",
            "client:Tool Call",
            "client:pending",
            "server:jump",
            "notify:nothing",
        ):
            error = flat(await _at_once(caller, event, dict(REQUESTS["client:tool_call"])))
            assert error.code == 400, (event, error)


# -- how a refusal is checked


def flat(answer: Any) -> FlatError:
    """The flat error that an ack is; its form is checked (design, the wire).

    Raises:
        AssertionError: it is none.
    """
    assert isinstance(answer, dict), answer
    assert {"code", "message"} <= answer.keys() <= {"code", "message", "details"}, answer
    assert isinstance(answer["code"], int)
    assert isinstance(answer["message"], str)
    assert 0 < len(answer["message"]) < 1000
    assert isinstance(answer.get("details", {}), dict)
    for internal in ("Traceback", "pydantic", "Error(", "smcp_"):
        assert internal not in str(answer)
    return FlatError(answer)


async def _at_once(caller: BareMember, event: str, *arguments: Any) -> Any:
    watch = Stopwatch()
    answer = await caller.ack(event, *arguments, timeout=10 * AT_ONCE_S)
    assert watch.undisturbed < AT_ONCE_S, f"{event} was answered after {watch.took:.3f} s"
    return answer


async def _refused(caller: BareMember, event: str, *arguments: Any, naming: str = "") -> None:
    try:
        answer = await _at_once(caller, event, *arguments)
        if event in DONE:
            _check_done(answer, naming)
            return
        error = flat(answer)
        assert error.code == 400
        assert error.details["field"] == naming
        assert naming in answer["message"]
    except AssertionError as failed:
        failed.add_note(f"{event} {str(arguments)[:300]}")
        raise


def _check_done(answer: Any, word: str) -> None:
    assert isinstance(answer, list), answer
    done, why, details = answer
    assert done is False
    assert isinstance(why, str)
    assert word in why
    assert 0 < len(why) < 1000
    assert isinstance(details, dict)


@asynccontextmanager
async def _caller(world: World) -> AsyncIterator[BareMember]:
    """An Agent in LAB that sends what is wrong: a call of its own goes on meanwhile, and its mates hear nothing."""
    async with (
        undisturbed(world),
        member(world.url(1), "computer", LAB, "mate") as mate,
        member(world.url(0), "agent", LAB, "caller") as caller,
    ):
        await mate.told("notify:enter_office", agent="caller")
        sid = caller.sid
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(caller.call("beta", "sleep", {"seconds": 1}, timeout=60))
            yield caller
        assert text(slow.result()) == "slept 1.0"
        assert caller.sid == sid
        await _hears_nothing(mate, caller)


async def _hears_nothing(mate: BareMember, caller: BareMember) -> None:
    """Beside comings and goings of the caller itself."""
    others = [notice for notice in mate.notices if notice[1].get("agent") != caller.name]
    assert others == []
    assert all(data.get("computer") != "mate" for _, data in caller.notices)
