"""Calls of the Computer `box` by the Agent `anna`, as tests of the gateway make and answer them."""

import asyncio
from typing import Any

from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import REQ_ID
from smcp_bus.nats.transfers import Send
from smcp_proto.schemas.tools import REPEAT, UNKNOWN_REPEAT
from smcp_testing.gateway_world import Client, reply


def call(number: int = 0, *, timeout: int = 30, **params: Any) -> dict[str, Any]:
    """The payload of a `client:tool_call`; its `req_id` is `r` and the number."""
    return {
        "agent": "anna", "req_id": f"r{number}", "computer": "box", "tool_name": "t", "params": params,
        "timeout": timeout,
    }  # fmt: skip


async def ask(client: Client, payload: dict[str, Any], *, timeout: float = 10) -> Any:
    """What the call is answered within `timeout` seconds."""
    return await client.call("client:tool_call", payload, timeout=timeout)


async def repeated(client: Client, payload: dict[str, Any], *, timeout: float) -> Any:
    """The same of an Agent that repeats the call after each answer that says that it may have run, as our SDK does."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    repeat: dict[str, Any] = {}
    async with asyncio.timeout(timeout):
        while True:
            answer = await ask(client, payload | repeat, timeout=timeout)
            details = answer.get("details", {})
            if answer.get("code") != 503 or not (repeat or details["may_have_run"]) or details.get(UNKNOWN_REPEAT):
                return answer
            await asyncio.sleep(0.1)
            repeat = {REPEAT: int(1000 * (loop.time() - began))}


async def echo(verb: str, incoming: Incoming) -> Reply:
    """A Computer that answers with what it was asked."""
    return reply({"verb": verb, "body": incoming.body.decode(), "req_id": incoming.headers.get(REQ_ID)})


class Hanging:
    """A Computer whose tools do not end until they are `released`; it knows its calls."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            self.running.set()
            await self.released.wait()
        return reply({"unknown": []})


def late(seconds: float, send: Send) -> Send:
    """A slow line for chunks."""
    loop = asyncio.get_running_loop()

    def later(subject: str, back: str, head: bytes, part: bytes | memoryview) -> None:
        loop.call_later(seconds, send, subject, back, head, part)

    return later
