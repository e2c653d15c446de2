"""A registry starts on a nats-server that leaves requests to JetStream without an answer, as a busy cluster does."""

import pytest

from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings
from smcp_testing.nats_process import NatsServer

ANSWER_S = 0.5
"""How long nats-py waits for an answer of JetStream here; its default is 5 s."""


@pytest.mark.parametrize("method", ["account_info", "add_stream", "stream_info", "add_consumer", "subscribe"])
async def test_a_registry_asks_again_when_nats_server_was_suspended_during_its_start(
    nats_server: NatsServer, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suspended server carries out the first request after it was given up: a stream is then there already."""
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        js = bus.jetstream(timeout=ANSWER_S)
        ask, asked = getattr(js, method), 0

        async def suspended_at_first(*given: object, **named: object) -> object:
            nonlocal asked
            asked += 1
            if asked > 1:
                return await ask(*given, **named)
            nats_server.pause()
            try:
                return await ask(*given, **named)
            finally:
                nats_server.resume()

        monkeypatch.setattr(js, method, suspended_at_first)
        monkeypatch.setattr(bus, "jetstream", lambda: js)
        async with open_registry(RegistrySettings(nats_url=nats_server.url), bus) as registry:
            assert registry.view.synced
            assert registry.leases.synced
        assert asked > 1
