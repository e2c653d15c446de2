"""Completions of several MCP servers as one answer, and what becomes of those that fail."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from smcp_computer.handlers.resources import MOST, complete, merged
from smcp_computer.mcp.errors import BadAnswer, RequestRefused, ServerDied, ServerError, ServerTimedOut

Said = Mapping[str, Any] | ServerError


def said(*values: str, **more: Any) -> dict[str, Any]:
    return {"completion": {"values": list(values), **more}}


def refused(server: str, code: int = -32601) -> RequestRefused:
    return RequestRefused(server, code, "no", None)


class Servers:
    """Answer what they are told to."""

    def __init__(self, **answers: Said) -> None:
        self.answers = answers
        self.asked: list[tuple[str, float]] = []

    async def __call__(self, server: str, timeout: float) -> Mapping[str, Any]:
        self.asked.append((server, timeout))
        await asyncio.sleep(0)
        answer = self.answers[server]
        if isinstance(answer, ServerError):
            raise answer
        return answer

    async def complete(self) -> tuple[Mapping[str, Any], str | None, list[str]]:
        server, result, left_out = await complete([*self.answers], self, timeout=20.0)
        return result, server, [*left_out]


async def test_the_completion_of_one_server_passes_unchanged() -> None:
    odd = {"completion": {"values": [1, None], "total": "many"}, "later": True}
    assert await Servers(a=odd).complete() == (odd, "a", [])


@pytest.mark.rule("answers.resources.completion.meta")
async def test_a_server_does_not_say_in_the_computer_s_name_what_is_missing() -> None:
    meta = {"a2c_skipped_servers": ["b"], "a2c_skipped": ["blue"], "more": 1}
    told = {**said("x"), "meta": {"more": 1}}
    for key in ("_meta", "meta"):
        lying = {**said("x"), key: meta}
        assert await Servers(a=lying).complete() == (told, "a", [])
        assert await Servers(a=lying, b=refused("b")).complete() == (told, "a", [])
        assert await Servers(a=lying, b=said("x")).complete() == (said("x", total=1, hasMore=False), None, [])


@pytest.mark.rule("answers.resources.completion.merged")
async def test_several_are_asked_side_by_side_and_each_value_is_there_once() -> None:
    servers = Servers(b=said("x", "y"), a=said("y", "z", total=2, hasMore=False))
    assert await servers.complete() == (said("x", "y", "z", total=3, hasMore=False), None, [])
    assert servers.asked == [("b", 5.0), ("a", 5.0)]


@pytest.mark.rule("answers.resources.completion.merged")
@pytest.mark.parametrize(
    ("one", "other", "more", "total"),
    [
        (said("a"), said("b"), False, 2),
        (said("a", hasMore=True), said("b"), True, None),
        (said("a"), said("b", total=2), True, None),
        (said("a", total=True), said("b", total="9", hasMore="yes"), False, 2),
        (said(), said(), False, 0),
        (said(*map(str, range(60))), said(*map(str, range(40, 100))), False, 100),
        (said(*map(str, range(60))), said(*map(str, range(60, 101))), True, 101),
    ],
)
def test_how_many_there_are_is_said_where_it_is_known(
    one: dict[str, Any], other: dict[str, Any], more: bool, total: int | None
) -> None:
    made = merged([one["completion"], other["completion"]])
    assert (made["hasMore"], made.get("total")) == (more, total)
    assert len(made["values"]) == min(MOST, len({*one["completion"]["values"], *other["completion"]["values"]}))


@pytest.mark.rule("answers.resources.completion.failing")
async def test_a_server_that_completes_nothing_costs_nothing_and_one_that_fails_is_named() -> None:
    assert await Servers(a=refused("a"), b=said("x", total=1)).complete() == (said("x", total=1), "b", [])
    assert await Servers(a=refused("a", -32602), b=said("x"), c=said("y")).complete() == (
        said("x", "y", total=2, hasMore=False), None, [],
    )  # fmt: skip
    dead, late, wrong = ServerDied("z", "died"), ServerTimedOut("c", "was silent"), {"completion": {"values": [1]}}
    found = await Servers(z=dead, a=said("x"), b=wrong, c=late, d={"completion": 7}, e=refused("e", -32603)).complete()
    assert found == (said("x"), "a", ["b", "c", "d", "e", "z"])


@pytest.mark.rule("answers.resources.completion.failing")
@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({"a": refused("a")}, RequestRefused),
        ({"a": refused("a"), "b": refused("b", -32602)}, RequestRefused),
        ({"a": refused("a"), "b": ServerTimedOut("b", "was silent")}, ServerTimedOut),
        ({"a": {}, "b": refused("b")}, BadAnswer),
    ],
)
async def test_where_all_fail_the_error_that_tells_most_is_raised(
    answers: dict[str, Said], error: type[ServerError]
) -> None:
    with pytest.raises(error):
        await Servers(**answers).complete()
