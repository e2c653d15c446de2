"""Whatever stands in an event's payload, its sender gets one answer of the event's shape, and nobody else notices.

Payloads are drawn from the published JSON Schemas: what they refuse has to be refused.
"""

import copy
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from smcp_bus.bus import Incoming, Reply
from smcp_proto import catalog
from smcp_proto.catalog import Ack, Row
from smcp_testing.event_payloads import GOOD, OFFICE
from smcp_testing.gateway_world import MIB, Client, World, connected, gateway_world, reply
from smcp_testing.guarded_nats import GuardedNats
from smcp_testing.profiles import scaled
from smcp_testing.raw_client import RawClient, raw_client

SCHEMAS: Final = Path(__file__).parents[3] / "docs" / "schemas"
EXAMPLES: Final = scaled(ci=40, soak=1000)
"""For each of some thirty events."""
UNKNOWN: Final[dict[str, dict[str, Any]]] = {
    "client:get_later": {"computer": "box", "agent": "anna"},
    "server:update_later": {"computer": "box"},
}
EVENTS: Final = {**GOOD, **UNKNOWN}
# The loop of the world has a thread of its own, which may use `random` while a payload is drawn; no strategy does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module inside strategies:hypothesis.errors.HypothesisDeprecationWarning"
)
REFUSED: Final = {400, 403, 404, 413, 503, 4103}
"""Codes with which a payload may be refused; 500 would be ours."""


def schema_of(row: Row) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{row.request.__name__}.json").read_text(encoding="utf-8"))
    return schema


@dataclass
class Scene:
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    world: World
    quiet: Client
    """An Agent of another office, who is not to notice anything."""

    async def undisturbed(self) -> None:
        asked = {"agent": "otto", "req_id": "1", "computer": "box"}
        assert (await self.quiet.call("client:get_tools", asked)) == {"verb": "get_tools"}
        assert self.quiet.events == []
        assert not self.quiet.gone.is_set()


async def _serve(verb: str, _: Incoming) -> Reply:
    return reply({"verb": verb})


@asynccontextmanager
async def _opened(directory: Path) -> AsyncIterator[tuple[World, Client]]:
    nats = GuardedNats(directory)
    await nats.start()
    try:
        async with (
            gateway_world(nats.url, lease_s=60.0, max_payload=MIB) as world,
            world.computer(OFFICE, "box", _serve, member=False),
            world.computer("quiet", "box", _serve),
            connected(world.url) as quiet,
        ):
            assert await quiet.join("agent", "otto", "quiet") == [True, None]
            yield world, quiet
    finally:
        await nats.stop()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One world for all events: none may hurt it.

    Its loop has a thread of its own, so that pings are answered while payloads are drawn, which may take longer than a
    client may be silent.
    """
    opened = _opened(tmp_path_factory.mktemp("nats"))
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(opened) as (world, quiet):
        yield Scene(partial(portal.call, _result), world, quiet)


async def _result(work: Coroutine[Any, Any, Any]) -> Any:
    return await work


def check_shape(row: Row, answer: Any) -> int | None:
    """The answer is of the event's shape; the code of its error, 0 for a refused join or leave, None for a success."""
    if row.ack is Ack.DONE:
        assert isinstance(answer, list), answer
        if answer == [True, None]:
            return None
        done, why, details = answer
        assert done is False
        assert why
        assert isinstance(why, str)
        assert isinstance(details, dict)
        return 0
    if isinstance(answer, dict) and "code" in answer:
        assert set(answer) == {"code", "message", "details"}, answer
        assert isinstance(answer["message"], str)
        assert 0 < len(answer["message"]) < 1000
        code: int = answer["code"]
        return code
    if row.ack is Ack.REPLY:
        assert isinstance(answer, dict), answer
    else:
        assert answer is None
    return None


def accepts(validator: Draft202012Validator, body: str, *, agents: bool) -> bool:
    """Whether the published schema takes it; text that is not JSON it does not.

    Args:
        agents: an Agent says it: whatever it writes as its own name is replaced.
    """

    def no_number(word: str) -> float:
        raise ValueError(word)

    try:
        value = json.loads(body, parse_constant=no_number)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    if agents and isinstance(value, dict) and "agent" in value:
        value["agent"] = "anna"
    return isinstance(value, dict) and bool(validator.is_valid(value))


async def joined(client: RawClient, event: str) -> None:
    if event == "server:join_office":
        return
    row = catalog.lookup(event)
    assert row is not None
    # by the names that the good payloads say: what is valid goes on to the registry, or to the Computer
    role, name = ("agent", "anna") if "agent" in row.senders else ("computer", "box")
    assert await client.join(role, name, OFFICE) == [True, None]


async def asked(client: RawClient, event: str, body: str) -> Any:
    answer = await client.ack(await client.event(event, body))
    if event == "server:join_office" and answer == [True, None]:  # stays out for the next one
        said = json.loads(body)["office_id"]
        assert await client.call("server:leave_office", {"office_id": said}) == [True, None]
    if event == "server:leave_office" and answer == [True, None]:
        assert await client.join("agent", "anna", OFFICE) == [True, None]
    return answer


@pytest.mark.parametrize("event", EVENTS)
def test_any_payload_gets_one_answer_of_the_events_shape(
    scene: Scene, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    row = catalog.lookup(event)
    assert row is not None
    schema = schema_of(row)
    validator = Draft202012Validator(schema)
    refusals = accepted = 0

    async def opened() -> tuple[Any, RawClient]:
        context = raw_client(scene.world.url)
        client = await context.__aenter__()
        await joined(client, event)
        return context, client

    context, client = scene.run(opened())

    @settings(max_examples=EXAMPLES)
    @given(bodies(EVENTS[event], schema))
    def try_it(body: str) -> None:
        nonlocal accepted, refusals
        answer = scene.run(asked(client, event, body))
        code = check_shape(row, answer)
        accepted += code is None
        if code:
            assert code in REFUSED, answer
        if not accepts(validator, body, agents="agent" in row.senders):
            assert code is not None, (body, answer)
            assert code in {0, 400, 413}, (body, answer)
            refusals += 1
        if not row.is_large and len(body) > 70_000:
            assert code in {0, 400, 413}

    try:
        try_it()
        assert refusals > EXAMPLES / 4
        if "agent" not in row.senders:
            native = row in [catalog.upstream(each) for each in catalog.CATALOG.values()]
            assert (accepted > 0) is not native, "odd payloads that are valid reach the registry"
        again = scene.run(client.join("agent", "", OFFICE))
        assert again[0] is False, "the connection stayed, and so did its membership"
    finally:
        scene.run(context.__aexit__(None, None, None))
    scene.run(scene.undisturbed())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_any_packet_text_affects_only_its_sender(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    async def one(texts: list[str]) -> None:
        async with raw_client(scene.world.url) as client:
            for text in texts:
                if client.socket.closed:
                    break
                await client.socket.send_str(text)

    head = st.sampled_from(
        ["", "4", "40", "41", "42", "43", "44", "45", "46", "42/smcp,", "43/smcp,7", "451-/smcp,", "2", "6"]
    )
    packet = st.tuples(head, st.text(st.characters(codec="utf-8"), max_size=60)).map("".join)

    @settings(max_examples=EXAMPLES)
    @given(st.lists(packet, min_size=1, max_size=8))
    def try_it(texts: list[str]) -> None:
        scene.run(one(texts))

    try_it()
    scene.run(scene.undisturbed())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_invalid_utf_8_affects_only_its_sender(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    async def one() -> None:
        async with raw_client(scene.world.url) as client:
            for broken in (
                b'42/smcp,1["client:x","\xff\xfe"]',
                '42/smcp,2["\ud800",{}]'.encode("utf-8", "surrogatepass"),
            ):
                await client.socket._writer.send_frame(broken, 1)
            await client.socket.send_bytes(b"\x00\xff" * 1000)

    scene.run(one())
    scene.run(scene.undisturbed())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


Place = tuple[str, ...]
"""Of a field: the names that lead to it."""

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
EDGES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 1, 3601, 10**30, 1e400, float("nan"), 0.5, "", "x" * 129, "x" * 513, "\x00", "a\nb",
     "\ud800", "\u202e", "*", ">", "../..", [], {}, [[]], {"": None}, "client:tool_call", "null", "__proto__"]
)  # fmt: skip
JUNK = st.recursive(
    EDGES | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


def nested(levels: int) -> str:
    return '{"d":' * levels + "null" + "}" * levels


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Of all fields, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*at, name)
            yield from places(inner, (*at, name))


def inside(value: Any, place: Place) -> dict[str, Any] | None:
    """What the field stands in; None where there is no object (any more)."""
    for name in place[:-1]:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


@st.composite
def changed(draw: st.DrawFn, good: dict[str, Any], schema: dict[str, Any]) -> Any:
    """The good payload with some fields missing, some of another kind, some of ours, at any depth; or as it is."""
    payload = copy.deepcopy(good)
    fields = sorted({*places(good), *((name,) for name in schema.get("properties", {}))})
    for place in draw(st.lists(st.sampled_from(fields), max_size=3, unique=True)):
        here = inside(payload, place)
        how = draw(st.sampled_from(["drop", "junk", "beside"]))
        if here is None:
            continue
        if how == "drop":
            here.pop(place[-1], None)
        elif how == "junk":
            here[place[-1]] = draw(JUNK)
        else:
            here.update(draw(st.dictionaries(ANY_TEXT, JUNK, min_size=1, max_size=2)))
    if draw(st.booleans()):
        payload |= draw(st.dictionaries(ANY_TEXT, JUNK, max_size=3))
    return payload


@st.composite
def bodies(draw: st.DrawFn, good: dict[str, Any], schema: dict[str, Any]) -> str:
    """What stands where the argument should: JSON of the wrong kind mostly, and text that is none."""
    text = json.dumps(draw(changed(good, schema) | JUNK), ensure_ascii=True)
    match draw(st.integers(0, 9)):
        case 0:
            cut = draw(st.integers(0, len(text)))
            return text[:cut]
        case 1:
            return draw(st.text(st.characters(codec="utf-8"), max_size=40))
        case 2:
            return text + "," + text
        case 3:
            field, levels = draw(st.sampled_from(sorted(good))), draw(st.sampled_from([127, 130, 1000, 20_000]))
            return json.dumps(good)[:-1] + f",{json.dumps(field)}:{nested(levels)}}}"
        case 4:
            return json.dumps({**good, draw(st.sampled_from(sorted(good))): "x" * 70_000})
        case _:
            return text
