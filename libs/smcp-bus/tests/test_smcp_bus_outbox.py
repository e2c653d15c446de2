"""The outbox of a Computer's notifications: sends each once with its newest content, retries, and is bounded."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from smcp_bus import outbox
from smcp_bus.bus import BodyTooLarge, NotConnected
from smcp_bus.outbox import LIST_CHANGED, UPDATED, Key, Outbox
from smcp_proto.errors import NotAllowed, Unavailable
from smcp_proto.schemas.resources import MISSED
from smcp_testing.waiting import eventually

KIB = 1024


class Office:
    """Hears what an outbox sends: the text of updates, and other notifications as JSON."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.heard: list[Any] = []
        self.failures: dict[str, Exception] = {}
        """By the text of an update; "": of everything."""
        self.tried: list[str] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.is_member = True
        self.outbox = Outbox(self._hear, self._start, office="o", computer="box", may_tell=lambda: self.is_member)
        self._tasks = tasks

    def say(self, uri: str, text: str = "", *, size: int = 1, agent: str = "anna", server: str | None = None) -> None:
        self.outbox.put(Key(UPDATED, server, uri, agent), f"{uri}{text}".encode().ljust(size))

    def _start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.create_task(run())

    async def _hear(self, verb: str, body: bytes) -> None:
        text = body.decode().strip()
        self.tried.append(text)
        await self.answering.wait()
        if (failure := self.failures.get(text) or self.failures.get("")) is not None:
            raise failure
        self.heard.append(text if verb == UPDATED else orjson.loads(body))


@asynccontextmanager
async def office() -> AsyncIterator[Office]:
    async with asyncio.TaskGroup() as tasks:
        yield Office(tasks)


def missed(server: str | None = None) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
    body = {"roomId": "o", "computerId": "box", MISSED: True, "payload": payload}
    return body if server is None else {**body, "serverId": server}


async def test_each_resource_is_sent_once_with_its_newest_update_in_order_of_the_first() -> None:
    async with office() as here:
        here.say("a", "1")
        await eventually(lambda: here.heard == ["a1"])
        for uri, text in (("b", "1"), ("a", "2"), ("b", "2"), ("c", "1"), ("a", "3")):
            here.say(uri, text)
        here.say("a", "x", agent="bert")
        assert here.heard == ["a1"]
        await eventually(lambda: here.heard == ["a1", "b2", "a3", "c1", "ax"])
        await here.outbox.flush()
        assert len(here.outbox.waiting) == 0


async def test_a_flush_sends_waiting_updates_at_once() -> None:
    async with office() as here:
        for number in range(5):
            here.say("a", str(number))
        await here.outbox.flush()
        assert here.heard == ["a4"]


async def test_a_change_that_comes_while_the_one_before_is_sent_is_sent_again() -> None:
    async with office() as here:
        here.answering.clear()
        here.say("a", "1")
        await eventually(lambda: here.tried == ["a1"])
        here.say("a", "1")
        here.answering.set()
        await eventually(lambda: here.heard == ["a1", "a1"])


async def test_a_change_that_comes_while_the_one_before_fails_replaces_it() -> None:
    async with office() as here:
        here.answering.clear()
        here.failures["a1"] = Unavailable("no registry")
        here.say("a", "1")
        await eventually(lambda: here.tried == ["a1"])
        here.say("a", "2")
        here.answering.set()
        await eventually(lambda: here.heard == ["a2"])
        assert here.tried == ["a1", "a2"]


@pytest.mark.parametrize("failure", [Unavailable("no registry"), NotConnected("no NATS")])
async def test_a_failed_update_is_sent_again_after_the_others(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with office() as here:
        here.failures["a1"] = failure
        here.say("a", "1")
        here.say("b")
        await eventually(lambda: here.heard == ["b"])
        here.failures.clear()
        await eventually(lambda: here.heard == ["b", "a1"])
    assert f"resources_updated could not be sent: {failure}" in caplog.messages


@pytest.mark.parametrize("failure", [NotAllowed("not yours"), BodyTooLarge(2, 1)])
async def test_a_refused_update_is_dropped_with_one_warning(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with office() as here:
        here.failures |= {"a": failure, "b": failure}
        for uri in "abc":
            here.say(uri, server="one")
        await eventually(lambda: here.heard == ["c"])
        assert here.tried == ["a", "b", "c"]
    said = f"resources_updated of MCP server 'one' cannot be sent, and is dropped: {failure}"
    assert caplog.messages == [said]


@pytest.mark.rule("answers.resources.flood")
@pytest.mark.parametrize("failure", [Unavailable("no registry"), NotConnected("no NATS")])
async def test_above_the_bound_one_list_changed_replaces_waiting_updates(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(outbox, "MOST_BYTES", 4 * KIB)
    async with office() as here:
        here.failures[""] = failure
        for number in range(4):
            here.say(f"{number}", size=KIB)
        assert len(here.outbox.waiting) == 4
        here.say("3", " anew", size=KIB)
        assert len(here.outbox.waiting) == 4, "it replaces one"
        for number in range(4, 6):
            here.say(f"{number}", size=KIB)
        assert len(here.outbox.waiting) == 2
        here.failures.clear()
        await eventually(lambda: len(here.heard) == 2)
        assert missed() in here.heard
        assert "5" in here.heard


async def test_the_bound_is_paid_by_the_server_that_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_BYTES", 4 * KIB)
    async with office() as here:
        here.say("a", server="one")
        for number in range(4):
            here.say(f"{number}", size=KIB, server="two")
        await eventually(lambda: here.heard == ["a", missed("two")])


async def test_any_number_of_servers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_BYTES", 4 * KIB)
    async with office() as here:
        here.is_member = False
        for number in range(100):
            here.say(f"{number}", size=KIB, server=str(number))
            assert sum(len(each.body) for each in here.outbox.waiting) <= 5 * KIB


async def test_waiting_updates_of_ended_subscriptions_are_dropped() -> None:
    async with office() as here:
        here.answering.clear()
        here.failures["a"] = Unavailable("no registry")
        here.say("a")
        await eventually(lambda: here.tried == ["a"])
        here.say("b")
        here.outbox.put(Key(LIST_CHANGED, "one"), b"{}")
        here.outbox.missed()
        here.answering.set()
        await eventually(lambda: here.heard == [missed()])
        await eventually(lambda: len(here.outbox.waiting) == 0)
        assert not {"a", "b"} & set(here.tried[1:])


async def test_nothing_is_sent_until_the_computer_is_a_member() -> None:
    async with office() as here:
        here.is_member = False
        here.say("a", "1")
        here.say("a", "2")
    assert here.tried == []  # and the task has ended
    async with asyncio.TaskGroup() as here._tasks:
        here.is_member = True
        here.outbox.resume()
        await eventually(lambda: here.heard == ["a2"])


async def test_sending_ends_with_the_membership() -> None:
    async with office() as here:
        here.failures[""] = Unavailable("no registry")
        here.say("a")
        await eventually(lambda: here.tried == ["a"])
        here.is_member = False
    assert here.tried == ["a"]
