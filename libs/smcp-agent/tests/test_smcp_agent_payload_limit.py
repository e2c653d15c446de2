"""The payload limit that a server announces when a connection is opened."""

import pytest

from smcp_agent import SmcpAgent
from smcp_agent.connecting.options import Transport
from smcp_agent.connecting.transport import HttpSession
from smcp_agent.errors import TooLarge
from smcp_testing.fake_gateway import fake_gateway

KIB = 1024
MIB = 1024 * KIB


@pytest.mark.parametrize("transport", ["websocket", "polling"])
@pytest.mark.parametrize("max_bytes", [MIB, 34 * MIB])
async def test_a_message_above_the_servers_limit_is_too_large_and_is_not_sent(
    transport: Transport, max_bytes: int
) -> None:
    patience = 20 if transport == "websocket" else 1  # it ends with its server no sooner
    async with (
        fake_gateway(max_bytes=max_bytes, ping_timeout=patience) as gateway,
        SmcpAgent(gateway.url, office="office", name="bot", transports=[transport]) as agent,
    ):
        stream = agent.events()
        with pytest.raises(TooLarge) as refused:
            await agent.call_tool("red", "echo", {"x": "x" * max_bytes})
        assert refused.value.details["limit"] == max_bytes - 64 * KIB
        assert refused.value.details["size"] > max_bytes
        fits = max_bytes - KIB if transport == "websocket" else 0
        assert (await agent.call_tool("red", "echo", {"x": "x" * fits})).text == "echo"
        assert stream.waiting == 0


@pytest.mark.parametrize(
    "said", ["", "0", "0{", '0{"maxPayload": true}', '0{"maxPayload": 0}', "0{}", '4{"maxPayload": 9}', b"\xff", None]
)
def test_without_an_announced_limit_the_default_applies(said: object) -> None:
    opening = HttpSession()
    opening._hear(said)
    assert opening.max_payload is None


def test_only_the_first_packet_sets_the_limit() -> None:
    opening = HttpSession()
    opening._hear('0{"maxPayload": 7}\x1e40')
    opening._hear('0{"maxPayload": 8}')
    assert opening.max_payload == 7
