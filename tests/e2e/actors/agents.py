"""An Agent that calls tools, by whatever client."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

from smcp_agent import SmcpAgent
from smcp_agent.errors import JoinRefused, SmcpError
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import FlatError, member


class Agent(Protocol):
    """What every scenario needs of an Agent; refusals are FlatErrors."""

    async def call(
        self, computer: str, tool: str, params: Mapping[str, Any] | None = None, *, timeout: int = 30
    ) -> dict[str, Any]:
        """MCP's CallToolResult as it came over the wire."""
        ...

    async def tools(self, computer: str) -> set[str]: ...

    async def room(self) -> set[tuple[str, str]]:
        """(role, name) of everyone in the office."""
        ...


async def lists(agent: Agent, *room: tuple[str, str]) -> None:
    """Wait until the office's list is exactly that: who was there before may still be leaving."""

    async def listed() -> bool:
        found = await agent.room()
        assert found == set(room), found
        return True

    await eventually(listed)


OpenAgent = Callable[[str, str, str], AbstractAsyncContextManager[Agent]]
"""url, office, name: an Agent in its office for as long as the block runs."""


class SdkAgent:
    """Our SDK with the same methods."""

    def __init__(self, agent: SmcpAgent) -> None:
        self.sdk = agent

    async def call(
        self, computer: str, tool: str, params: Mapping[str, Any] | None = None, *, timeout: int = 30
    ) -> dict[str, Any]:
        with _flat_errors():
            return dict((await self.sdk.call_tool(computer, tool, params or {}, timeout=timeout)).raw)

    async def tools(self, computer: str) -> set[str]:
        with _flat_errors():
            return {tool.name for tool in await self.sdk.get_tools(computer)}

    async def room(self) -> set[tuple[str, str]]:
        with _flat_errors():
            return {(session.role or "", session.name or "") for session in await self.sdk.list_room()}


@contextmanager
def _flat_errors() -> Iterator[None]:
    try:
        yield
    except SmcpError as error:
        raise FlatError(error.body().model_dump()) from error


@asynccontextmanager
async def sdk_agent(url: str, office: str, name: str) -> AsyncIterator[Agent]:
    """As `bare.member`, it waits while the seat is taken: the member of the test before may still be leaving."""

    async def opened() -> SmcpAgent:
        try:
            return await SmcpAgent(url, office=office, name=name).open()
        except JoinRefused as refused:
            raise AssertionError(refused) from None

    agent = await eventually(opened)
    try:
        yield SdkAgent(agent)
    finally:
        await agent.close()


@asynccontextmanager
async def bare_agent(url: str, office: str, name: str) -> AsyncIterator[Agent]:
    async with member(url, "agent", office, name) as agent:
        yield agent


AGENTS: dict[str, OpenAgent] = {"sdk": sdk_agent, "bare": bare_agent}
