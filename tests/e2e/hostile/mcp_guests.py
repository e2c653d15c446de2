"""Hostile MCP servers of a Computer in `LAB`, and MCP clients and a Computer of `THIRD`, whose Agent is smcp-mcp."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from smcp_proto import catalog
from smcp_service.settings import MIB
from smcp_testing.event_payloads import GOOD
from smcp_testing.mcp_servers import configs
from smcp_testing.mcp_service import INITIALIZE, META
from smcp_testing.slow_reader import small_socket
from smcp_testing.waiting import eventually
from tests.e2e.hostile.members import answering
from tests.e2e.hostile.mutations import ACCEPTED, Mutator, Unchanged
from tests.e2e.hostile.rows import REFUSED, REFUSED_FOR_A_COMPUTER, wrong_mcp_answer, wrong_reply
from tests.e2e.hostile.target import (
    ANSWER_S,
    AT_ONCE,
    RESULT,
    SERVERS,
    THIRD,
    VICTIM,
    Target,
    acknowledged,
    call,
    connected,
    join,
)
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.world import LAB

ASKED: Final = {
    "resources/list": ("client:resources/list", "client:get_desktop", "client:get_finder"),
    "resources/templates/list": ("client:resources/templates/list",),
    "resources/read": ("client:resources/read",),
    "resources/subscribe": ("client:resources/subscribe",),
    "resources/unsubscribe": ("client:resources/unsubscribe",),
    "prompts/list": ("client:prompts/list",),
    "prompts/get": ("client:prompts/get",),
    "completion/complete": ("client:completion/complete",),
}
"""The events that make a Computer send a request of MCP."""
AT_START: Final = ("initialize", "tools/list")
"""What a Computer sends to each server that starts."""
SERVERS_OF_A_FILE: Final = 5
STREAM_S: Final = 0.3
"""How long a client reads a stream that does not end."""
CONNECTIONS: Final = 25
SESSIONS: Final = 100
"""Of one client at a time, beside the one that it has."""
UNREAD: Final = 20
"""Of these, how many do not read an answer of `UNREAD_BYTES`: more than the kernel takes."""
UNREAD_BYTES: Final = 2 * MIB
OF_A_COMPUTER: Final[dict[str, dict[str, Any]]] = {
    "tools/list": {},
    "tools/call": {"name": "t", "arguments": {"a": "b"}},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "smcp://evil/file:///notes.txt"},
    "prompts/list": {},
    "prompts/get": {"name": "greet", "arguments": {"who": "a"}},
    "completion/complete": {
        "ref": {"type": "ref/resource", "uri": "smcp://evil/file:///{path}"},
        "argument": {"name": "path", "value": "n"},
    },
}
"""Good requests of an MCP client that the Computer `evil` answers."""


async def an_mcp_server_that_is_called(target: Target, make: Mutator, count: int) -> Counter[str]:
    seen = Counter[str]()
    async with connected(target.url, target.keys.agent) as socket:
        await join(socket, "agent", "mallory")
        for start in range(0, count, AT_ONCE):
            said: dict[int, str] = {}
            for number in range(start, min(start + AT_ONCE, count)):
                said[number] = make.tool_result()
                await call(socket, number, make, VICTIM.name, "say", {"text": said[number], "big": 10})
            answers = await acknowledged(socket, set(said))
            for number, text in said.items():
                wrong = wrong_reply(catalog.CATALOG["client:tool_call"], answers[number])
                seen[target.outcome(answers[number], text, wrong)] += 1
    return seen


async def an_mcp_server_that_is_asked(target: Target, make: Mutator, count: int) -> Counter[str]:
    """For its resources, prompts and completions."""
    seen = Counter[str]()
    async with connected(target.url, target.keys.agent) as socket:
        await join(socket, "agent", "mallory")
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            said = {number: _answer_of_a_server(make) for number in numbers}
            for number, (method, text) in said.items():
                params = {"method": method, "text": text}
                await call(socket, number, make, VICTIM.name, "script", params, timeout=int(ANSWER_S))
            kept = await acknowledged(socket, set(said))
            assert not (other := [answer for answer in kept.values() if answer != {"content": []}]), other
            events = {number: make.random.choice(ASKED[method]) for number, (method, _) in said.items()}
            for number, event in events.items():
                await socket.send_str(f"42/smcp,{number}" + json.dumps([event, _request(event, number)]))
            answers = await acknowledged(socket, set(said))
            for number, event in events.items():
                wrong = wrong_reply(catalog.CATALOG[event], answers[number])
                seen[target.outcome(answers[number], (event, *said[number]), wrong)] += 1
    return seen


def _answer_of_a_server(make: Mutator) -> tuple[str, str]:
    method = make.random.choice([*ASKED])
    return method, make.mcp_result(method)


def _request(event: str, number: int) -> dict[str, Any]:
    good = {**GOOD[event], "req_id": f"{number:032x}"}
    if "roomId" in good:
        return {**good, "roomId": LAB, "computerId": VICTIM.name, "serverId": "scripted"}
    return {**good, "agent": "mallory", "computer": VICTIM.name}


async def an_mcp_server_that_starts(target: Target, make: Mutator, count: int) -> Counter[str]:
    """Several in each changed file; returns how often each state came."""
    seen = Counter[str]()
    async with connected(target.url, target.keys.agent) as socket:
        await join(socket, "agent", "mallory")
        for start in range(0, count, SERVERS_OF_A_FILE):
            names = [f"s{number}" for number in range(start, min(start + SERVERS_OF_A_FILE, count))]
            servers = {name: _started(make, target.directory / f"{name}.answers.json") for name in names}
            Place(VICTIM.credential, LAB, VICTIM.name, SERVERS | servers).config(target.directory)
            states: dict[str, str] = {}

            async def settled(names: list[str] = names, states: dict[str, str] = states) -> bool:
                await socket.send_str("42/smcp,1" + json.dumps(["client:get_status", _request("client:get_status", 1)]))
                answer = (await acknowledged(socket, {1}))[1]
                assert not (wrong := wrong_reply(catalog.CATALOG["client:get_status"], answer)), wrong
                states.update({server["name"]: server["state"] for server in answer["servers"]})
                return all(states.get(name, "starting") != "starting" for name in names)

            await eventually(settled, message="the servers of a changed file did not start")
            seen.update(states[name] for name in names)
        VICTIM.config(target.directory)
    return seen


def _started(make: Mutator, file: Path) -> dict[str, Any]:
    answers = {method: make.mcp_result(method) for method in AT_START if make.random.random() < 0.6}
    file.write_text(json.dumps(answers), encoding="utf-8")
    return configs.stdio("scripted", "--answers", str(file))


class _Client:
    """An MCP client of `THIRD`, with a session for those requests that want one."""

    def __init__(self, target: Target, http: aiohttp.ClientSession) -> None:
        self.session = ""
        self.seen = Counter[str]()
        self._target = target
        self._http = http

    async def ask(
        self, method: str, query: str, body: bytes, headers: dict[str, str], refused: re.Pattern[str] = REFUSED
    ) -> None:
        """`method`: of HTTP; `refused` as of `wrong_mcp_answer`."""
        url = f"{self._target.mcp_url}/mcp/{THIRD}{query}"
        try:
            async with self._http.request(method, url, data=body, headers=headers) as answer:
                streams = method == "GET" or b"/listen" in body
                text = ""
                with suppress(TimeoutError):
                    async with asyncio.timeout(STREAM_S if streams else None):
                        text = await answer.text()
                if wrong := wrong_mcp_answer(body, answer.status, answer.content_type, text, refused):
                    self._target.failed.append((wrong, method, query, body, headers, text[:300]))
                self.seen[str(answer.status)] += 1
                begun = answer.headers.get("Mcp-Session-Id", self.session)
            if answer.status == 200 and begun != self.session:  # up to 250 would take memory until they are idle
                await self.end(begun)
        except aiohttp.ClientConnectionError:
            self.seen["closed"] += 1

    async def begin(self) -> str:
        """A new session."""
        url = f"{self._target.mcp_url}/mcp/{THIRD}"
        async with self._http.post(url, json=INITIALIZE, headers={"Accept": ACCEPTED}) as opened:
            return opened.headers["Mcp-Session-Id"]

    async def leave_unread(self, session: str) -> None:
        """Ask for a large answer, wait until it comes, and go without having read it."""
        url, headers = f"{self._target.mcp_url}/mcp/{THIRD}", {"Accept": ACCEPTED, "Mcp-Session-Id": session}
        params = {"name": "big", "arguments": {"size": UNREAD_BYTES}}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        async with self._http.post(url, json=request, headers=headers) as answer:
            assert len(await answer.content.readany()) < UNREAD_BYTES / 2
            self.seen["unread"] += 1

    async def end(self, session: str) -> None:
        url = f"{self._target.mcp_url}/mcp/{THIRD}"
        async with self._http.delete(url, headers={"Mcp-Session-Id": session}):
            pass


@asynccontextmanager
async def _client(target: Target) -> AsyncIterator[_Client]:
    authorization = {"Authorization": f"Bearer {target.keys.mcp_client}"}
    connector, timeout = aiohttp.TCPConnector(socket_factory=small_socket), aiohttp.ClientTimeout(total=ANSWER_S)
    async with aiohttp.ClientSession(headers=authorization, timeout=timeout, connector=connector) as http:
        client = _Client(target, http)
        client.session = await client.begin()
        yield client
        await client.end(client.session)


async def an_mcp_client(target: Target, make: Mutator, count: int) -> Counter[str]:
    """Of both eras, with a session or without. In the end it has many sessions at a time, and leaves answers unread."""
    async with _client(target) as client:

        async def one() -> None:
            method, body, headers = make.mcp_request(client.session)
            query = make.random.choice(["", "", "", "?tools=search", "?max_chars=9", "?tools=x", "?x=1"])
            await client.ask(method, query, body, headers)

        for start in range(0, count, CONNECTIONS):
            async with asyncio.TaskGroup() as group:
                for _ in range(min(CONNECTIONS, count - start)):
                    group.create_task(one())
    async with _client(target) as other:  # on new connections: those of bad requests may be closed at this moment
        sessions = [await other.begin() for _ in range(SESSIONS)]
        await asyncio.gather(*map(other.leave_unread, sessions[:UNREAD]))
        await asyncio.gather(*map(other.end, sessions))
    return client.seen + other.seen


async def a_computer_behind_smcp_mcp(target: Target, make: Mutator, count: int) -> Counter[str]:
    """Good requests of an MCP client, of both eras. The Computer announces changes between them."""
    asked = set[str]()

    def text(event: str, request: dict[str, Any]) -> bytes:
        asked.add(event)
        return make.computer_answer(event, request, RESULT)

    async with connected(target.url, target.keys.mcp_computer) as socket:
        await join(socket, "computer", "evil", THIRD)
        async with answering(socket, text), _client(target) as client:

            async def one() -> None:
                method = make.random.choice([*OF_A_COMPUTER])
                params, headers = OF_A_COMPUTER[method], {"Accept": ACCEPTED, "Content-Type": "application/json"}
                if make.random.random() < 0.5:
                    params = {**params, "_meta": META}
                    headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
                    if name := params.get("name") or params.get("uri"):
                        headers["Mcp-Name"] = name
                else:
                    headers["Mcp-Session-Id"] = client.session
                request = {"jsonrpc": "2.0", "id": make.random.getrandbits(32), "method": method, "params": params}
                query = make.random.choice(["", "", "?tools=search", "?max_chars=9"])
                await client.ask("POST", query, json.dumps(request).encode(), headers, REFUSED_FOR_A_COMPUTER)

            for start in range(0, count, CONNECTIONS):
                for event in ("server:update_tool_list", "notify:resources/list_changed", "notify:resources/updated"):
                    of = {"roomId": THIRD, "computerId": "evil"} if "roomId" in GOOD[event] else {"computer": "evil"}
                    await socket.send_str("42/smcp,1" + json.dumps([event, {**GOOD[event], **of}]))
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(CONNECTIONS, count - start)):
                        group.create_task(one())
    if isinstance(make, Unchanged):  # after a list of tools that cannot be read its office waits half a second
        wanted = {f"client:{method}" for method in OF_A_COMPUTER if not method.startswith("tools/")}
        assert asked >= wanted | {"client:get_tools", "client:tool_call"}, asked
    return client.seen
