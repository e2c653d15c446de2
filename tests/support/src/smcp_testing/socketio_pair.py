"""An Agent and its Computer on Socket.IO in one office, on one replica or on two."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from smcp_gateway.app import Gateway
from smcp_gateway.sockets.session import Session
from smcp_testing.gateway_world import NAMESPACE, Client, World, connected, gateway_world

OFFICE: Final = "办公室 1"
BOX: Final = "盒子.*"
RESULT: Final[dict[str, Any]] = {"content": [{"type": "text", "text": "done"}], "isError": False}

Answer = Callable[[dict[str, Any]], Awaitable[Any]]


def call(number: int = 0, *, timeout: int = 30, **params: Any) -> dict[str, Any]:
    return {
        "agent": "anna", "req_id": f"r{number}", "computer": BOX, "tool_name": "t", "params": params,
        "timeout": timeout,
    }  # fmt: skip


def query(computer: str = BOX) -> dict[str, Any]:
    return {"agent": "anna", "req_id": "q", "computer": computer}


def serve(computer: Client, event: str, answer: Answer) -> list[dict[str, Any]]:
    """Let a client answer an event; returns what it was asked."""
    asked: list[dict[str, Any]] = []

    async def handle(payload: dict[str, Any]) -> Any:
        asked.append(payload)
        return await answer(payload)

    computer.sio.on(event, handle, namespace=NAMESPACE)
    return asked


async def echo(payload: dict[str, Any]) -> dict[str, Any]:
    return {"content": [], "isError": False, "echo": payload}


def hang(computer: Client) -> Answer:
    """Never answers; ends with the connection."""

    async def answer(_: dict[str, Any]) -> Any:
        await computer.gone.wait()

    return answer


@dataclass(frozen=True)
class Couple:
    """`anna` calls `box`."""

    world: World
    anna: Client
    box: Client

    @property
    def owner(self) -> Gateway:
        """The replica that holds the Computer's socket."""
        return self.world.gateways[-1]

    @property
    def running(self) -> int:
        """Calls that run at the Computer."""
        return sum(gateway.computers.owner.running for gateway in self.world.gateways)

    @property
    def session(self) -> Session:
        """The Computer's."""
        return next(session for session in self.owner.sessions if session.role == "computer")


@asynccontextmanager
async def couple(
    nats_url: str,
    replicas: int = 2,
    *,
    auth: Any = None,
    take: int | None = None,
    flat_errors: bool = True,
    **options: Any,
) -> AsyncIterator[Couple]:
    """The Agent is on the first replica, its Computer on the last.

    Args:
        auth, take, flat_errors: the Agent's (`connected`).
        options: of `gateway_world`.
    """
    async with (
        gateway_world(nats_url, gateways=replicas, **options) as world,
        connected(world.gateways[0].url, auth=auth, take=take, flat_errors=flat_errors) as anna,
        connected(world.gateways[-1].url) as box,
    ):
        assert await box.join("computer", BOX, OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        yield Couple(world, anna, box)
