"""Inputs made by chance, from a stranger, an Agent, Computers and an MCP server of one office: each is refused or
answered, and an office beside it notices nothing.

During each batch every call in the other office is as quick as before, after each attack memory is back, and nobody has
left. What was found once has a test of its own in the other modules of this name.
"""

import asyncio
import json
import logging
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import pytest
from nats.aio.msg import Msg

from smcp_agent import ComputerLeft, Disconnected, Event, SmcpAgent
from smcp_auth import api_keys
from smcp_bus import registry_contract, subjects
from smcp_bus.owner import MAX_KEYS, Keeping
from smcp_proto import catalog
from smcp_testing.event_payloads import GOOD
from smcp_testing.mcp_servers import configs
from smcp_testing.nats_peer import nats_peer
from smcp_testing.profiles import scaled
from smcp_testing.waiting import Stopwatch, eventually
from tests.e2e.hostile.mutations import Mutator
from tests.e2e.worlds.layout import OTHER_ALPHA, Place
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import ELSEWHERE, LAB, World

INPUTS: Final = scaled(ci=20_000, soak=1_000_000)
BATCH: Final = 500
AT_ONCE: Final = 100
"""Where some are not answered: each group waits for them."""
SLOWER_S: Final = 0.25
"""By so much a call in the other office may be slower than without an attack."""
GROWTH: Final = 1.05
ENDED_CALL: Final = 700
"""Bytes that a gateway takes for each call that ended at a Computer on Socket.IO, beside its result: measured."""
SLACK: Final = 16 * 1024 * 1024 + scaled(ci=0, soak=Keeping().results_bytes + MAX_KEYS * ENDED_CALL)
"""Bytes of memory beside that: caches that fill once (patterns, names of events), the allocator's arenas, and what a
gateway may keep of the calls of Computers on Socket.IO, so that none runs twice."""
ANSWER_S: Final = 30.0
HALF_S: Final = 0.3
"""How long a client stays that sent half a request; `test_e2e_hostile_unauthenticated` says what becomes of it."""
INTERNAL: Final = "internal error"
"""The message where the system itself failed; a Computer whose answer is unreadable is another 500."""
JOIN: Final = 10**9
"""The number of the packet that joins."""
CALLS: Final = 40
PACE_S: Final = 0.02
"""Between two calls of the bystander. Its Computer remembers that each was run, which takes memory."""
VICTIM: Final = Place("host-alpha", LAB, "alpha", {"raw": configs.stdio("raw")})
GUEST: Final = Place("host-guest", LAB, "guest")
RESULT: Final = {"content": [{"type": "text", "text": "a"}], "isError": False, "_meta": {"a": 1}}
"""A host with a credential for NATS, and no Computer but the attack itself."""

LONGEST_S: Final = scaled(ci=900, soak=12 * 3600)
"""A mark counts more than `--timeout` of `make soak`."""

pytestmark = [pytest.mark.timeout(LONGEST_S), pytest.mark.alone]

_log: Final = logging.getLogger(__name__)

Attack = Callable[["Guests", Mutator, int], Coroutine[Any, Any, Counter[str]]]


class Guests:
    """The world that is attacked, and the credentials that the hostile ones have."""

    def __init__(self, world: World, agent: str, computer: str) -> None:
        self.world = world
        self.agent = agent
        self.computer = computer
        self.failed: list[object] = []
        """The inputs at which the system itself failed."""

    def outcome(self, answer: Any, said: object) -> str:
        if not isinstance(answer, dict) or "code" not in answer:
            return "answered"
        if answer["message"] == INTERNAL:
            self.failed.append(said)
        return str(answer["code"])

    @property
    def url(self) -> str:
        return self.world.url()


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A client that is let in, by packets that it writes itself."""
    async with aiohttp.ClientSession() as http:
        address = f"{url}/socket.io/?EIO=4&transport=websocket"
        async with http.ws_connect(address, max_msg_size=64 * 1024 * 1024) as socket:
            await socket.receive()
            await socket.send_str("40/smcp," + json.dumps({"token": token, "flat_errors": True}))
            await socket.receive()
            yield socket


async def acknowledged(socket: aiohttp.ClientWebSocketResponse, numbers: set[int]) -> dict[int, Any]:
    """The acknowledgements of these packets. Raises AssertionError: the connection ended; TimeoutError: none came."""
    found: dict[int, Any] = {}
    async with asyncio.timeout(ANSWER_S):
        while numbers - found.keys():
            message = await socket.receive()
            assert message.type is aiohttp.WSMsgType.TEXT, f"the connection ended: {message}"
            text: str = message.data
            if text == "2":
                await socket.send_str("3")
            elif text.startswith("43/smcp,"):
                number, bracket, rest = text[8:].partition("[")
                found[int(number)] = json.loads(bracket + rest)[0]
    return found


async def a_stranger_speaks_http(guests: Guests, make: Mutator, count: int) -> Counter[str]:
    host, port = guests.url.removeprefix("http://").split(":")
    seen = Counter[str]()

    async def one(request: bytes) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(request)
            async with asyncio.timeout(HALF_S):
                answer = await reader.read(4096)
            status = answer[9:12].decode("ascii", "replace")
            seen[status or "closed"] += 1
            if status.startswith("5"):
                guests.failed.append(request)
        except ConnectionError:
            seen["closed"] += 1
        except TimeoutError:
            seen["half"] += 1
        finally:
            writer.close()

    for start in range(0, count, AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, count - start)):
                group.create_task(one(make.http()))
    return seen


async def a_stranger_speaks_socketio(guests: Guests, make: Mutator, count: int) -> Counter[str]:
    seen = Counter[str]()
    async with aiohttp.ClientSession() as http:
        while (left := count - seen.total()) > 0:
            try:
                async with http.ws_connect(f"{guests.url}/socket.io/?EIO=4&transport=websocket") as socket:
                    for _ in range(min(left, 25)):
                        await socket.send_str(make.packet())
                        seen["ignored"] += 1
            except aiohttp.WSServerHandshakeError as refusal:  # packets that connect count as wrong tokens
                seen[str(refusal.status)] += 1
            except ConnectionError:
                seen["closed"] += 1
    return seen


async def _events(
    guests: Guests, socket: aiohttp.ClientWebSocketResponse, make: Mutator, count: int, names: list[str]
) -> Counter[str]:
    seen = Counter[str]()
    for start in range(0, count, 50):
        sent: dict[int, object] = {}
        for number in range(start, min(start + 50, count)):
            event = make.random.choice(names)
            good = {**GOOD.get(event, {}), "req_id": f"{number:032x}", "timeout": 1, "office_id": LAB}
            if "computer" in good:
                good["computer"] = VICTIM.name
            body = make.changed(good)
            sent[number] = said = [event, body if body is not None else {}]
            await socket.send_str(f"42/smcp,{number}" + json.dumps(said))
        answers = await acknowledged(socket, set(sent))
        seen.update(guests.outcome(answers[number], said) for number, said in sent.items())
    return seen


async def an_agent_of_another_office(guests: Guests, make: Mutator, count: int) -> Counter[str]:
    async with connected(guests.url, guests.agent) as socket:
        await join(socket, "agent", "mallory")
        names = [event for event in GOOD if event not in ("server:leave_office", "server:join_office")]
        return await _events(guests, socket, make, count, [*names, "client:other", "server:update_other"])


async def a_computer_at_the_gateway(guests: Guests, make: Mutator, count: int) -> Counter[str]:
    async with connected(guests.url, guests.computer) as socket:
        await join(socket, "computer", "evil")
        names = [event for event in GOOD if event.startswith(("server:update", "notify:", "server:resources"))]
        return await _events(guests, socket, make, count, names)


async def a_computer_at_nats(guests: Guests, make: Mutator, count: int) -> Counter[str]:
    seen = Counter[str]()
    verbs = {catalog.verb_of(event) for event in GOOD if event.startswith("server:")} | {*registry_contract.SERVER_ROWS}
    asked = [subjects.server(LAB, "computer", GUEST.name, verb) for verb in sorted(verbs | {"x"})]
    leases = [subjects.hosts(GUEST.credential, "p1", "lease")]
    async with nats_peer(guests.world.nats_url, guests.world.credentials / f"{GUEST.credential}.json") as peer:

        async def ask(subject: str, body: bytes) -> None:
            message = await peer.client.request(subject, body, timeout=ANSWER_S)
            try:
                seen[guests.outcome(json.loads(message.data), (subject, body))] += 1
            except ValueError:
                seen["answered"] += 1

        for start in range(0, count, 25):
            async with asyncio.TaskGroup() as group:
                for _ in range(min(25, count - start)):
                    body = make.text(GOOD["server:join_office"] | {"lease_s": 1, "sockets": 10**6, "accepting": True})
                    group.create_task(ask(make.random.choice(asked + leases), body))
    return seen


async def a_computer_that_answers(guests: Guests, make: Mutator, count: int) -> Counter[str]:
    seen, said = Counter[str](), dict[str, bytes]()

    async def answer(socket: aiohttp.ClientWebSocketResponse) -> None:
        while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            if message.data == "2":
                await socket.send_str("3")
            elif message.data.startswith("42/smcp,"):
                number, bracket, rest = message.data[8:].partition("[")
                text = make.text([RESULT])
                said[json.loads(bracket + rest)[1]["req_id"]] = text
                await socket.send_str(f"43/smcp,{number}" + text.decode("utf-8", "replace"))

    async with connected(guests.url, guests.computer) as theirs, connected(guests.url, guests.agent) as socket:
        await join(theirs, "computer", "evil")
        await join(socket, "agent", "mallory")
        answering = asyncio.create_task(answer(theirs))
        try:
            for start in range(0, count, AT_ONCE):
                numbers = range(start, min(start + AT_ONCE, count))
                asked = [await call(socket, number, make, "evil", "t", {}) for number in numbers]
                answers = await acknowledged(socket, set(numbers))
                seen.update(guests.outcome(answers[number], said.get(asked[number - start])) for number in numbers)
        finally:
            answering.cancel()
            await asyncio.wait({answering})
    return seen


async def a_computer_at_nats_that_answers(guests: Guests, make: Mutator, count: int) -> Counter[str]:
    seen, said = Counter[str](), dict[str, object]()
    async with (
        nats_peer(guests.world.nats_url, guests.world.credentials / f"{GUEST.credential}.json") as peer,
        connected(guests.url, guests.agent) as socket,
    ):

        async def answer(message: Msg) -> None:
            headers, text = make.headers(), make.text(RESULT)
            said[json.loads(message.data)["req_id"]] = headers, text
            await peer.client.publish(message.reply, text, headers=headers)

        await join(socket, "agent", "mallory")
        await peer.client.subscribe(subjects.client_all(LAB, GUEST.name), queue=subjects.OWNER_QUEUE, cb=answer)
        await peer.flushed()
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            asked = {number: await call(socket, number, make, GUEST.name, "t", {}) for number in numbers}
            answers = await acknowledged(socket, set(numbers))
            seen.update(guests.outcome(answers[number], said.get(asked[number])) for number in numbers)
    return seen


async def join(socket: aiohttp.ClientWebSocketResponse, role: str, name: str) -> None:
    request = {"role": role, "name": name, "office_id": LAB}
    await socket.send_str(f"42/smcp,{JOIN}" + json.dumps(["server:join_office", request]))
    assert (await acknowledged(socket, {JOIN}))[JOIN] == [True, None]


async def call(
    socket: aiohttp.ClientWebSocketResponse, number: int, make: Mutator, computer: str, tool: str, params: object
) -> str:
    """Returns the id of the request, which no other one has: a repeated one is not run."""
    req_id = f"{make.random.getrandbits(128):032x}"
    request = {"agent": "mallory", "req_id": req_id, "computer": computer, "tool_name": tool, "timeout": 2}
    await socket.send_str(f"42/smcp,{number}" + json.dumps(["client:tool_call", {**request, "params": params}]))
    return req_id


async def an_mcp_server(guests: Guests, make: Mutator, count: int) -> Counter[str]:
    seen = Counter[str]()
    async with connected(guests.url, guests.agent) as socket:
        await join(socket, "agent", "mallory")
        for start in range(0, count, AT_ONCE):
            said: dict[int, str] = {}
            for number in range(start, min(start + AT_ONCE, count)):
                said[number] = make.mcp_answer()
                await call(socket, number, make, VICTIM.name, "say", {"text": said[number], "big": 10})
            answers = await acknowledged(socket, set(said))
            seen.update(guests.outcome(answers[number], text) for number, text in said.items())
    return seen


ATTACKS: Final[dict[str, tuple[Attack, float]]] = {
    "a stranger speaks HTTP": (a_stranger_speaks_http, 0.15),
    "a stranger speaks Socket.IO": (a_stranger_speaks_socketio, 0.15),
    "an Agent of another office": (an_agent_of_another_office, 0.25),
    "a Computer at the gateway": (a_computer_at_the_gateway, 0.15),
    "a Computer that answers": (a_computer_that_answers, 0.1),
    "a Computer at NATS": (a_computer_at_nats, 0.1),
    "a Computer at NATS that answers": (a_computer_at_nats_that_answers, 0.05),
    "an MCP server": (an_mcp_server, 0.05),
}
"""Each with its share of the inputs."""


def rss(world: World) -> dict[str, int]:
    return {part.name: psutil.Process(part.pid).memory_info().rss for part in world.parts if part is not world.nats}


class Bystander:
    """An Agent in the other office."""

    def __init__(self, agent: SmcpAgent) -> None:
        self._agent = agent
        self.heard: list[Event] = []
        agent.on_event(self.heard.append)

    async def call_s(self) -> float:
        """How long a call takes, without the time in which the machine had no processor for somebody."""
        watch = Stopwatch()
        result = await self._agent.call_tool(OTHER_ALPHA.name, "add", {"a": 1, "b": 2}, timeout=30)
        assert not result.is_error
        return max(watch.undisturbed, 0.0)

    async def median_s(self) -> float:
        return statistics.median([await self.call_s() for _ in range(CALLS)])


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[Guests, Bystander]]:
    keys, tokens = directory / "keys.json", dict[str, str]()
    for holder, office, role in (("mallory", LAB, "agent"), ("evil", LAB, "computer"), ("bob", ELSEWHERE, "agent")):
        tokens[holder], entry = api_keys.new_key(
            subject=holder, offices=[office.replace("*", "\\*")], roles=[role], names=["*"]
        )
        api_keys.add(keys, entry)
    world_ = open_processes(
        directory,
        gateways=1,
        registries=1,
        places=(VICTIM, OTHER_ALPHA),
        known=[GUEST],
        # kept results are memory that the bystander's own calls take
        environment={"SMCP_AUTH_KEYS": str(keys), "SMCP_KEEP_RESULTS_S": "0"},
    )
    async with (
        world_ as world,
        SmcpAgent(world.url(), office=ELSEWHERE, name="bob", token=tokens["bob"]) as agent,
    ):
        with world.telling():
            bystander = Bystander(agent)
            yield Guests(world, tokens["mallory"], tokens["evil"]), bystander


async def test_no_input_of_a_hostile_guest_costs_another_office_anything(tmp_path: Path) -> None:
    async with opened(tmp_path) as (guests, bystander):
        warm = Mutator(0)
        for attack, _ in ATTACKS.values():
            await attack(guests, warm, 100)
        quiet = await bystander.median_s()
        before = rss(guests.world)  # now that the bystander's Computer has run calls, too
        for number, (name, (attack, share)) in enumerate(ATTACKS.items(), start=1):
            make, left, seen = Mutator(number), round(INPUTS * share), Counter[str]()
            while left > 0:
                batch = min(BATCH, left)
                left -= batch
                running = asyncio.create_task(attack(guests, make, batch))
                during = [await bystander.call_s()]
                while not running.done():
                    during.append(await bystander.call_s())
                    await asyncio.sleep(PACE_S)
                seen += await running
                slower = max(during) - quiet
                assert slower < SLOWER_S, f"{name}: a call in another office took {slower:.3f} s more"
            assert not guests.failed, f"{name}: {guests.failed[:10]}"
            _log.info("%s: %s", name, dict(seen.most_common()))

            async def memory_is_back(name: str = name) -> bool:
                now = rss(guests.world)
                grown = {part: (was, now[part]) for part, was in before.items() if now[part] > was * GROWTH + SLACK}
                assert not grown, (name, grown)
                return True

            await eventually(memory_is_back, message="memory did not come back")
            _log.info("%s: memory: %s", name, {part: now - before[part] for part, now in rss(guests.world).items()})
        assert not [event for event in bystander.heard if isinstance(event, ComputerLeft | Disconnected)]
        assert await bystander.median_s() - quiet < SLOWER_S
