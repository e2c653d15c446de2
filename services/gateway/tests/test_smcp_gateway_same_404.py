"""An unknown Computer and one of another office: nats-server saw no difference between the two questions.

No clock is read: the same messages, to the same services, of the same sizes, in the same order take the same time.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_testing.gateway_world import Client, World, connected, gateway_world, reply
from smcp_testing.guarded_nats import GuardedNats
from smcp_testing.waiting import BOUND_S, eventually

OFFICE = "office"
FOREIGN, UNKNOWN = "foreign", "unknown"
"""As long as each other, so that sizes can be compared, too."""

_LINE = re.compile(r" - (?P<connection>cid:\d+) - .* - <<- (?P<what>(?:\[H?PUB |MSG_PAYLOAD: ).*)")
_RANDOM = re.compile(r"_INBOX\.\S+")
_BUDGET = re.compile(r"Smcp-Budget: \d+")


class Traced:
    """A nats-server that writes down each message that it takes."""

    def __init__(self, directory: Path) -> None:
        self.server = GuardedNats(directory, options=["--trace"])

    def announced(self) -> int:
        """How many joins the registry has told the offices of, and ticked off in its log: nothing follows from them."""
        return len(re.findall(r"<<- \[H?PUB \$JS\.ACK\.", self.server.log.read_text()))

    def begin(self) -> None:
        self._at = self.server.log.stat().st_size

    def messages(self, asked: str) -> list[tuple[str, str]]:
        """Taken since `begin`: connection, and subject, sizes or body; without what is random, or `asked`.

        What a registry asks of its log and its views comes whenever it likes, and is left out.
        """
        found, polling = list[tuple[str, str]](), set[str]()
        with self.server.log.open() as log:
            log.seek(self._at)
            for match in filter(None, map(_LINE.search, log)):
                connection, what = match["connection"], match["what"]
                if what.startswith("[PUB $JS.API.CONSUMER."):
                    if not what.endswith(" 0]"):  # without a body there is no second line
                        polling.add(connection)
                elif what.startswith("MSG_PAYLOAD: ") and connection in polling:
                    polling.remove(connection)
                else:
                    said = _BUDGET.sub("Smcp-Budget", _RANDOM.sub("_INBOX", what)).replace(asked, "X")
                    found.append((connection, said))
        return found


async def serve(verb: str, _: Incoming) -> Reply:
    return reply({"verb": verb})


@asynccontextmanager
async def native(world: World) -> AsyncIterator[None]:
    async with world.computer("other", FOREIGN, serve):
        yield


@asynccontextmanager
async def on_the_same_gateway(world: World) -> AsyncIterator[None]:
    async with connected(world.url) as computer:
        assert await computer.join("computer", FOREIGN, "other") == [True, None]
        yield


async def ask(anna: Client, event: str, computer: str) -> Any:
    call: dict[str, Any] = {"agent": "anna", "req_id": "r", "computer": computer}
    if event == "client:resources/read":
        payload = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///x"}}
        call = {"req_id": "r", "roomId": OFFICE, "computerId": computer, "payload": payload}
    if event == "client:tool_call":
        call |= {"tool_name": "t", "params": {}, "timeout": 60}
    return await anna.call(event, call, timeout=60)


@pytest.mark.rule("answers.{who.same-404,who.same-404.time,who.own-office,errors.404,acks.at-once,resources.computer}")
@pytest.mark.parametrize("foreign", [native, on_the_same_gateway])
@pytest.mark.parametrize(
    "event", ["client:tool_call", "client:get_config", "client:get_skills", "client:resources/read"]
)
async def test_a_computer_of_another_office_causes_the_same_lookups_as_an_unknown_one(
    tmp_path: Path, event: str, foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what is asked for again, or given up, depends on the machine
    monkeypatch.setattr("smcp_bus.registry_client.AGAIN_S", BOUND_S)
    monkeypatch.setattr("smcp_registry.handlers.rooms.LOOK_S", BOUND_S)
    monkeypatch.setattr("smcp_gateway.calls.EVERY_S", BOUND_S)
    traced = Traced(tmp_path / "nats")
    await traced.server.start()
    try:
        # a long lease: nothing else is said meanwhile
        async with gateway_world(traced.server.url, lease_s=600) as world, foreign(world), connected(world.url) as anna:
            assert await anna.join("agent", "anna", OFFICE) == [True, None]
            room = await anna.call("server:list_room", {"agent": "anna", "req_id": "l", "office_id": OFFICE})
            assert len(room["sessions"]) == 1  # the registry knows her by now, and need not look after her
            await eventually(lambda: traced.announced() == 2, timeout=30, message="not both joins were announced")
            seen = []
            for name in (UNKNOWN, FOREIGN):
                traced.begin()
                answer = await ask(anna, event, name)
                assert answer == {
                    "code": 404,
                    "message": f"no such Computer in this office: {name!r}",
                    "details": {"computer": name},
                }
                seen.append(traced.messages(name))
    finally:
        await traced.server.stop()
    unknown, other = seen
    asked = [what for _, what in unknown if what.startswith("[HPUB smcp.v1.office.")]
    assert [what.split()[1] for what in asked] == [
        f"smcp.v1.office.client.X.{event.partition(':')[2].replace('/', '_')}",
        "smcp.v1.office.server.agent.anna.find",
    ]
    assert other == unknown
