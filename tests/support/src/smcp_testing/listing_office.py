"""An office whose Computers list resources and templates, and its Agent."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson

from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR
from smcp_testing.gateway_world import Client, World, connected, gateway_world, reply
from smcp_testing.waiting import eventually

OFFICE = "办公室 1"
KINDS = ["resources", "templates"]
EVENT = {"resources": "client:resources/list", "templates": "client:resources/templates/list"}
KEY = {"resources": "resources", "templates": "resourceTemplates"}
VERBS = {"resources_list": "resources", "resources_templates_list": "templates"}


def item(name: str, number: int) -> dict[str, Any]:
    return {"uri": f"file:///{name}/{number}", "name": str(number), "unknown": [number]}


class Lister:
    """A Computer that lists so many items, two a page."""

    def __init__(self, name: str, count: int = 3, *, page: int = 2) -> None:
        self.name = name
        self.asked: list[dict[str, Any]] = []
        self._count = count
        self._page = page

    async def __call__(self, verb: str, incoming: Incoming) -> Reply:
        return reply(self.answer(VERBS[verb], orjson.loads(incoming.body)))

    def answer(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        message = request["payload"]
        begin = int((message.get("params") or {}).get("cursor", 0))
        items = [item(self.name, number) for number in range(begin, min(begin + self._page, self._count))]
        result: dict[str, Any] = {KEY[kind]: items, "meta": {"of": self.name}}
        if begin + self._page < self._count:
            result["nextCursor"] = str(begin + self._page)
        payload = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return {"roomId": OFFICE, "computerId": self.name, "payload": payload}


def failing(body: Any, code: int | None = None) -> Any:
    """A Computer that answers this, as a flat error where there is a code."""

    async def serve(_: str, __: Incoming) -> Reply:
        return Reply(orjson.dumps(body), {} if code is None else {ERROR: str(code)})

    return serve


def flat(code: int, **details: Any) -> Any:
    return failing({"code": code, "message": "no", "details": details}, code)


async def silent(_: str, __: Incoming) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError


async def ask(anna: Client, kind: str = "resources", cursor: str | None = None, **envelope: Any) -> Any:
    params = {} if cursor is None else {"params": {"cursor": cursor}}
    payload = {"jsonrpc": "2.0", "id": 7, "method": EVENT[kind].partition(":")[2], **params}
    return await anna.call(EVENT[kind], {"roomId": OFFICE, "payload": payload, **envelope}, timeout=30)


async def pages(anna: Client, kind: str = "resources", *, most: int = 50) -> list[dict[str, Any]]:
    """All of them, one after the other."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(most):
        answer = await ask(anna, kind, cursor)
        assert answer["roomId"] == OFFICE
        assert (answer["payload"]["jsonrpc"], answer["payload"]["id"]) == ("2.0", 7)
        found.append(answer)
        cursor = answer["payload"]["result"].get("nextCursor")
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


def listed(found: list[dict[str, Any]], kind: str = "resources") -> list[tuple[str | None, list[str]]]:
    """Of each page where it comes from, and its items."""
    return [(page.get("computerId"), [each["uri"] for each in page["payload"]["result"][KEY[kind]]]) for page in found]


def skipped(found: list[dict[str, Any]]) -> list[str]:
    return [name for page in found for name in page["payload"]["result"].get("meta", {}).get("a2c_skipped", [])]


@asynccontextmanager
async def office(
    nats_url: str, computers: Mapping[str, Any], *, auth: Any = None, **options: Any
) -> AsyncIterator[tuple[World, Client]]:
    """The Agent is on the first of two gateways, and has heard of all these Computers."""
    async with (
        gateway_world(nats_url, gateways=2, **options) as world,
        connected(world.gateways[0].url, auth=auth) as anna,
        AsyncExitStack() as stack,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        for name, serve in computers.items():
            await stack.enter_async_context(world.computer(OFFICE, name, serve))
        await known(anna, len(computers))
        yield world, anna


async def known(anna: Client, count: int) -> None:
    await eventually(lambda: len(anna.told("notify:enter_office")) == count)
