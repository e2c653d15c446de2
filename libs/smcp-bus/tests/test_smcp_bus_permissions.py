"""The bus under nats-server's permissions, as `smcp nats-config` writes them for a gateway and a Computer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smcp_bus.bus import BusError, Incoming, NoResponder, Reply
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.nats.config import Credentials
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import within

MIB = 1024 * 1024

CONFIG = """
authorization {
  users: [
    { user: gateway, password: g, permissions: {
        publish: ["smcp.v1.*.client.>", "smcp.v1.*.server.>", "_INBOX.>"]
        subscribe: ["_INBOX.gateway.>", "smcp.v1.*.notify.>", "smcp.v1.*.server.>"]
    } }
    { user: computer, password: c, permissions: {
        publish: ["smcp.v1.office.server.computer.Mine.*"]
        subscribe: ["_INBOX.computer.>", "smcp.v1.office.client.Mine.> owner"]
        allow_responses: { max: 500, expires: "1m" }
    } }
  ]
}
"""


@asynccontextmanager
async def gateway_and_computer(directory: Path) -> AsyncIterator[tuple[Bus, Bus]]:
    config = directory / "permissions.conf"
    config.write_text(CONFIG)
    server = NatsServer(directory / "nats", config=config)
    await server.start()
    try:
        g = Credentials("gateway", "g", "_INBOX.gateway")
        c = Credentials("computer", "c", "_INBOX.computer")
        async with (
            open_bus(BusConfig(url=server.url, credentials=g)) as gateway,
            open_bus(BusConfig(url=server.url, credentials=c)) as computer,
        ):
            yield gateway, computer
    finally:
        await server.stop()


async def echo(incoming: Incoming) -> Reply:
    return Reply(incoming.body)


@pytest.mark.parametrize("size", [10, 20 * MIB])
async def test_a_computer_answers_with_large_bodies_by_allowed_responses_alone(tmp_path: Path, size: int) -> None:
    async with gateway_and_computer(tmp_path) as (gateway, computer):
        await computer.serve("smcp.v1.office.client.Mine.*", echo, queue="owner")
        body = bytes(size)
        reply = await gateway.request("smcp.v1.office.client.Mine.tool_call", body, timeout=60)
        assert reply.body == body


async def test_a_computer_asks_with_large_bodies(tmp_path: Path) -> None:
    async with gateway_and_computer(tmp_path) as (gateway, computer):
        await gateway.serve("smcp.v1.*.server.>", echo)
        body = bytes(3 * MIB)
        reply = await computer.request("smcp.v1.office.server.computer.Mine.join_office", body, timeout=60)
        assert reply.body == body


@pytest.mark.parametrize(
    ("subject", "queue"),
    [
        ("smcp.v1.office.client.Other.*", "owner"),
        ("smcp.v1.office.client.Mine.*", ""),
        ("smcp.v1.Office.client.Mine.*", "owner"),
        ("smcp.v1.*.client.*.*", "owner"),
    ],
)
async def test_serving_what_is_not_permitted_is_refused_and_leaves_nothing(
    tmp_path: Path, subject: str, queue: str
) -> None:
    async with gateway_and_computer(tmp_path) as (_, computer):
        with pytest.raises(BusError, match="not permitted"):
            await computer.serve(subject, echo, queue=queue)
        assert computer.connected
        assert computer.stats()["running"] == 0
        await computer.serve("smcp.v1.office.client.Mine.*", echo, queue="owner")


async def test_a_request_without_permission_fails_at_once_as_not_run(tmp_path: Path) -> None:
    async with gateway_and_computer(tmp_path) as (_, computer):
        with pytest.raises(NoResponder):
            async with within(2):
                await computer.request("smcp.v1.office.client.Mine.tool_call", b"", timeout=60)
        assert computer.stats()["pending"] == 0


async def test_nobody_reads_the_answers_to_another_credential(tmp_path: Path) -> None:
    async with gateway_and_computer(tmp_path) as (gateway, computer):

        async def hear(incoming: Incoming) -> None:
            raise AssertionError("it overheard")

        for prefix in ("_INBOX.gateway.>", f"_INBOX.gateway.{gateway.process}.*", ">"):
            with pytest.raises(BusError, match="not permitted"):
                await computer.listen(prefix, hear)
