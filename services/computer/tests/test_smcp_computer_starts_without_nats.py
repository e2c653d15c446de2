"""A Computer that starts in the moment in which NATS is away."""

import asyncio
from pathlib import Path

from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_computer.app import open_computer
from smcp_computer.config.file import parse_config
from smcp_computer.settings import ComputerSettings
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually, within


async def test_it_waits_and_answers_once_nats_is_back(nats_server: NatsServer) -> None:
    settings = ComputerSettings(
        nats_url=nats_server.url, config=Path("unused"), office="home", name="red", drain_s=1.0, lease_s=2.0
    )
    config = parse_config('{"servers": {}}')
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        await nats_server.kill()
        await eventually(lambda: not bus.connected)
        back = asyncio.create_task(nats_server.start())
        async with within(60), open_computer(settings, bus, config=config, environ={}):
            await back
            reply = await bus.request("smcp.v1.home.client.red.get_config", b"{}", timeout=30)
            assert b'"code":503' in reply.body, "it serves its subject, and is not in its office yet"
