"""An oversized or unreadable answer of an MCP server fails its request at once, and the server goes on."""

import asyncio
import codecs
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.exact_json import MAX_VALUES
from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.errors import KEPT, AnswerTooLarge, BadAnswer, ServerDied, error_for_cut_answer
from smcp_computer.mcp.stdio import Cut, Lines
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.mcp.transports import Limits
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

Way = Literal["stdio", "plain", "events", "sse"]
LIMIT = 200_000
HALF = r'{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"a\ud800b \ud83d\ude00"}]}}'
BIG = '{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"$BIG"}]}}'
BROKEN = '{"jsonrpc":"2.0","id":$ID,"result":{"content":}}'
FINE = '{"result":{"content":[{"type":"text","text":"fine"}]},"jsonrpc":"2.0","id":$ID}'


@asynccontextmanager
async def server(way: Way, *, limit: int = LIMIT, max_values: int = MAX_VALUES) -> AsyncIterator[Supervisor]:
    async with AsyncExitStack() as stack:
        config = configs.stdio("raw")
        if way != "stdio":
            kind: Literal["streamable", "sse"] = "sse" if way == "sse" else "streamable"
            raw = await stack.enter_async_context(configs.http_raw(kind, plain=way == "plain"))
            config = configs.http(kind, raw.url)
        parsed = parse_config(json.dumps({"servers": {"raw": config}})).servers["raw"]
        supervisor = Supervisor(
            parsed,
            InputResolver({}, {}),
            limits=Limits(max_message=limit, max_values=max_values),
            on_change=lambda: None,
        )
        tasks = await stack.enter_async_context(background())
        task = tasks.start(supervisor.run(), name="owner")
        try:
            await asyncio.wait_for(supervisor.settled.wait(), 30)
            assert supervisor.ready, supervisor.reason
            yield supervisor
        finally:
            supervisor.stop()
            await asyncio.wait_for(task, 30)


async def say(supervisor: Supervisor, text: str, **arguments: Any) -> str:
    """The text of the answer. The time-out is long, to distinguish an immediate error from a time-out."""
    answer = await supervisor.call("say", {"text": text, **arguments}, timeout=60)
    found: str = answer["content"][0]["text"]
    return found


@pytest.mark.rule("computer.safety.leaks", "answers.resources.server.large")
@pytest.mark.parametrize("way", ["stdio", "plain", "events"])
async def test_an_oversized_answer_is_an_error_and_the_server_goes_on(way: Way) -> None:
    async with asyncio.timeout(50), server(way) as raw:
        for text in (BIG, '{"result":{"content":"$BIG"},"jsonrpc":"2.0","id":$ID}'):
            with pytest.raises(AnswerTooLarge, match="'raw' sent an answer of more than 200000 bytes") as refused:
                await say(raw, text, big=1_000_000)
            assert refused.value.details["limit"] == LIMIT
            size = refused.value.details.get("size")
            assert (size or 0) > 1_000_000 if way == "stdio" else size is None
        assert await say(raw, FINE) == "fine"
        assert len(await say(raw, BIG, big=LIMIT)) == LIMIT
        assert raw.starts == 1


@pytest.mark.rule("answers.resources.server.values")
@pytest.mark.parametrize("way", ["stdio", "plain", "events"])
async def test_an_answer_of_too_many_values_is_an_error_and_the_server_goes_on(way: Way) -> None:
    def answer(*lists: str) -> str:
        content = {"type": "text", "text": '"\\,[{' * 20_000 + "fine"}
        said = {"jsonrpc": "2.0", "id": "$ID", "result": {"content": [content], "structuredContent": {"v": "$V"}}}
        return json.dumps(said).replace('"$ID"', "$ID").replace('"$V"', f"[{','.join(lists)}]")

    async with asyncio.timeout(50), server(way, limit=2_000_000, max_values=20_000) as raw:
        for text in (answer(*["[]"] * 25_000), answer(*["[]"] * 5_000, '"\\\\"', *["{}"] * 10_000)):
            with pytest.raises(AnswerTooLarge, match="'raw' sent an answer of more than 20000 values") as refused:
                await say(raw, text)
            assert refused.value.details["max_values"] == 20_000
        assert (await say(raw, answer(*["[]"] * 5_000))).endswith("fine")
        assert raw.starts == 1


@pytest.mark.rule("answers.resources.server.large.sse")
async def test_an_sse_answer_above_1_mib_fails_its_call_and_reconnects() -> None:
    async with asyncio.timeout(50), server("sse", limit=8_000_000) as raw:
        assert len(await say(raw, BIG, big=1_000_000)) == 1_000_000
        with pytest.raises(ServerDied, match="'raw' went away"):
            await say(raw, BIG, big=1_100_000)
        await eventually(lambda: raw.ready and raw.starts == 2, timeout=30)
        assert await say(raw, FINE) == "fine"


@pytest.mark.rule("answers.errors.surrogates")
@pytest.mark.parametrize("way", ["stdio", "sse"])
async def test_lone_surrogates_in_an_answer_become_the_replacement_character(
    way: Way,
) -> None:
    async with asyncio.timeout(50), server(way) as raw:
        assert await say(raw, HALF) == "a\ufffdb 😀"


@pytest.mark.rule("answers.resources.server.unread")
@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("plain", HALF),
        ("events", HALF),
        ("stdio", BROKEN),
        ("stdio", FINE.replace("fine", "$BYTE")),
        ("plain", BROKEN),
        ("events", BROKEN),
        ("sse", BROKEN),
        ("stdio", '{"result":[],"jsonrpc":"2.0","id":$ID}'),
        ("stdio", '{"jsonrpc":"2.0","id":$ID,"result":{"content":' + "[" * 300 + "]" * 300 + "}}"),
    ],
)
async def test_an_unparsable_answer_is_an_error_at_once(way: Way, text: str) -> None:
    async with asyncio.timeout(50), server(way) as raw:
        with pytest.raises(BadAnswer, match="'raw' sent an answer that cannot be read"):
            await say(raw, text)
        assert await say(raw, FINE) == "fine"
        assert raw.starts == 1


@pytest.mark.rule("answers.resources.server.unread")
@pytest.mark.parametrize(
    ("head", "tail", "id_"),
    [
        ('{"jsonrpc":"2.0","id":7,"result":{', "", 7),
        (' { "id" : "7" , "jsonrpc" : "2.0" , "error" : {', "", 7),
        ('{"result":{"a":"', 'xxx"},"jsonrpc":"2.0","id":8}', 8),
        ('{"jsonrpc":"2.0","result":{"id":3', '"id":4},"id":9, "jsonrpc":"2.0" } ', 9),
        ('{"result":{"a":"', '"id":4}}', None),
        ('{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage"', "", None),
        ('{"method":"x","params":{', '},"jsonrpc":"2.0","id":7}', None),
        ('{"jsonrpc":"2.0","id":null,"error":{', "", None),
        ("hello", '"id":7}', None),
        ("", "", None),
    ],
)
def test_the_request_id_is_found_at_the_head_or_tail_of_an_answer(head: str, tail: str, id_: int | None) -> None:
    error = error_for_cut_answer(head, tail, BadAnswer("raw", "sent nothing"))
    assert (None if error is None else error.id) == id_


texts = st.lists(st.text(alphabet="aé深😀", max_size=9), max_size=9)


@given(texts, st.lists(st.integers(1, 7)), st.integers(1, 30))
def test_lines_do_not_depend_on_how_bytes_arrive(texts: list[str], cuts: list[int], longest: int) -> None:
    lines, left, found = Lines(codecs.getincrementaldecoder("utf-8")(), longest), "\n".join([*texts, ""]).encode(), []
    for cut in [*cuts, len(left)]:
        found += lines.feed(left[:cut])
        left = left[cut:]
    assert found == [text if len(text.encode()) <= longest else Cut(text, text, len(text.encode())) for text in texts]


@pytest.mark.rule("answers.resources.server.large")
def test_only_head_and_tail_of_an_oversized_line_are_kept() -> None:
    lines = Lines(codecs.getincrementaldecoder("utf-8")(), 10_000)
    for part in (b"head", *[b"x" * 5000] * 100, b"tail"):
        assert lines.feed(part) == []
        assert sum(map(len, lines._parts)) < 20_000
    (cut, after) = lines.feed(b"\nafter\n")
    assert isinstance(cut, Cut)
    assert (cut.head[:5], cut.tail[-5:], len(cut.head), len(cut.tail)) == ("headx", "xtail", KEPT, KEPT)
    assert cut.size == 500_008
    assert after == "after"


@pytest.mark.parametrize("said", ["1", "0", '"true"'])
async def test_a_result_whose_is_error_is_no_boolean_is_not_valid(said: str) -> None:
    async with asyncio.timeout(50), server("stdio") as raw:
        with pytest.raises(BadAnswer, match="'raw' sent a result that is not valid"):
            await say(raw, FINE.replace("}]}", f'}}],"isError":{said}}}'))


async def test_an_is_error_of_null_is_none() -> None:
    async with asyncio.timeout(50), server("stdio") as raw:
        text = FINE.replace("}]}", '}],"isError":null}')
        assert "isError" not in await raw.call("say", {"text": text}, timeout=60)
