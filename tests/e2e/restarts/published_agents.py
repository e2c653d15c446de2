"""Agents of the published package `a2c-smcp`, unchanged, a few to a process, that call their office's Computer.

Runs in an environment of its own (`bench.published_env`). Each polls first, comes from an address of its own, connects
again by itself, and is joined again by its application, here: nothing that it sent is sent again.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from a2c_smcp.agent.auth import DefaultAgentAuthProvider
from a2c_smcp.agent.client import AsyncSMCPAgentClient

from tests.e2e.restarts.caller import Answer, Caller, Journal, Pace, journal
from tests.e2e.restarts.orders import Work, config, follow
from tests.e2e.restarts.together import together

NAMESPACE = "/smcp"
AGAIN_S = 0.2
"""Between two attempts to join."""
JOINED_S = 60.0


class Agent(AsyncSMCPAgentClient):  # type: ignore[misc] # the package is in another environment
    """The client as it is; it lets be chosen what calls are known by, and shows how an answer came."""

    def __init__(self, member: dict[str, Any], http: aiohttp.ClientSession, book: Journal) -> None:
        super().__init__(DefaultAgentAuthProvider(member["name"], member["office"]), http_session=http)
        self._place = {"role": "agent", "name": member["name"], "office_id": member["office"]}
        self._refusals: dict[str, dict[str, Any]] = {}
        self._book = book
        self.joined = asyncio.Event()
        self.on("connect", self._join, namespace=NAMESPACE)
        self.on("disconnect", self._lost, namespace=NAMESPACE)

    async def ask(self, computer: str, req_id: str, seconds: float, timeout: int) -> Answer:
        result = await self.emit_tool_call(computer, "work", {"id": req_id, "seconds": seconds}, timeout)
        text = "".join(block.text for block in result.content)
        refused = self._refusals.pop(req_id, None)
        if refused is not None:
            return Answer(None, text, refused["code"], refused["details"].get("may_have_run"))
        return Answer(None, text) if result.isError else Answer(text)

    def create_tool_call_request(self, computer: str, tool_name: str, params: dict[str, Any], timeout: int) -> Any:
        return {**super().create_tool_call_request(computer, tool_name, params, timeout), "req_id": params["id"]}

    async def call(self, event: str, data: Any = None, namespace: str | None = None, timeout: int = 60) -> Any:
        answer = await super().call(event, data, namespace, timeout)
        if isinstance(answer, dict) and "code" in answer:
            self._refusals[data["req_id"]] = answer
        return answer

    async def _lost(self, *_: object) -> None:
        self._book.write(lost=time.monotonic(), office=self._place["office_id"])

    async def _join(self) -> None:
        if NAMESPACE in self.namespaces:
            await self.emit("server:join_office", self._place, namespace=NAMESPACE, callback=self._on_joined)

    async def _on_joined(self, answer: Any) -> None:
        if answer == [True, None]:
            self.joined.set()
        else:
            asyncio.get_running_loop().call_later(AGAIN_S, lambda: self.start_background_task(self._join))


@asynccontextmanager
async def agents(told: dict[str, Any]) -> AsyncIterator[Work]:
    async with AsyncExitStack() as stack:
        book = stack.enter_context(journal(told["journal"]))
        callers = []
        for member in told["members"]:
            connector = aiohttp.TCPConnector(local_addr=(member["address"], 0), force_close=True)
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            agent = Agent(member, http, book)
            await agent.connect_to_server(member["url"])
            stack.push_async_callback(agent.disconnect)
            async with asyncio.timeout(JOINED_S):
                await agent.joined.wait()
            callers.append(_caller(agent, member, told, book))
        yield together([caller.run for caller in callers])


def _caller(agent: Agent, member: dict[str, Any], told: dict[str, Any], book: Journal) -> Caller:
    async def ask(req_id: str, seconds: float) -> Answer:
        return await agent.ask(member["computer"], req_id, seconds, told["timeout_s"])

    return Caller("published", member["office"], Pace(**told["pace"]), book, ask)


if __name__ == "__main__":
    asyncio.run(follow(agents(config())))
