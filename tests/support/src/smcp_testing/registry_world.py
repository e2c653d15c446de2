"""Registries in this process, and a member's own voice on their bus."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.headers import ERROR
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_proto.member_names import Role
from smcp_registry.app import EVENTS, Registry, open_registry
from smcp_registry.settings import RegistrySettings


@asynccontextmanager
async def registries(
    url: str, *, lease_s: float = 10, count: int = 2, kv_replicas: int = 1, **more: Any
) -> AsyncIterator[list[Registry]]:
    """`more`: of the settings."""
    settings = RegistrySettings(nats_url=url, lease_s=lease_s, kv_replicas=kv_replicas, **more)
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            bus = await stack.enter_async_context(open_bus(BusConfig(url=url)))
            opened.append(await stack.enter_async_context(open_registry(settings, bus)))
        yield opened


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Bus]:
    async with open_bus(BusConfig(url=url)) as bus:
        yield bus


def recorded(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[str, str]]:
    """Kind and outcome of what the registries of this process recorded of a member, by the lines of their logs."""
    records: list[Any] = [each for each in caplog.records if each.name == EVENTS]
    return [(each.getMessage(), each.outcome) for each in records if each.member == name]


async def send(bus: Bus, office: str, role: Role, name: str, verb: str, body: object, **headers: str) -> int | None:
    """The code of the answer's error, None for a success."""
    subject = subjects.server(office, role, name, verb)
    reply = await bus.request(subject, orjson.dumps(body), timeout=30, headers=headers)
    return int(reply.headers[ERROR]) if ERROR in reply.headers else None
