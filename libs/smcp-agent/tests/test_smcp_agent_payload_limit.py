"""The payload limit that a server announces when a connection is opened."""

import pytest

from smcp_agent import SmcpAgent
from smcp_agent.connecting.transport import HttpSession, open_packet
from smcp_agent.errors import TooLarge
from smcp_testing.fake_gateway import fake_gateway

KIB = 1024
MIB = 1024 * KIB


@pytest.mark.parametrize("max_bytes", [MIB, 34 * MIB])
async def test_a_message_above_the_servers_limit_is_too_large_and_is_not_sent(max_bytes: int) -> None:
    async with (
        fake_gateway(max_bytes=max_bytes) as gateway,
        SmcpAgent(gateway.url, office="office", name="bot") as agent,
    ):
        stream = agent.events()
        with pytest.raises(TooLarge) as refused:
            await agent.call_tool("red", "echo", {"x": "x" * max_bytes})
        assert refused.value.details["limit"] == max_bytes - 64 * KIB
        assert refused.value.details["size"] > max_bytes
        fits = max_bytes - KIB
        assert (await agent.call_tool("red", "echo", {"x": "x" * fits})).text == "echo"
        assert stream.waiting == 0


PINGS = '"pingInterval": 4000, "pingTimeout": 4000'


@pytest.mark.parametrize(
    "said",
    [
        "",
        "0",
        "0{",
        "0{}",
        '0{"pingInterval": 4000}',
        '0{"pingInterval": "4", "pingTimeout": 4}',
        f"4{{{PINGS}}}",
        b"\xff",
        None,
    ],
)
def test_another_message_is_no_open_packet(said: object) -> None:
    assert open_packet(said) is None


async def test_the_first_open_packet_says_what_the_server_promises() -> None:
    http = HttpSession()
    try:
        http.hear("40")
        assert (http.max_payload, http.heartbeat_s) == (None, 0.0)
        http.hear(f'0{{"maxPayload": 7, {PINGS}}}')
        http.hear(f'0{{"maxPayload": 8, {PINGS}}}')
        assert (http.max_payload, http.heartbeat_s) == (7, 8.0)
    finally:
        await http.close()


@pytest.mark.parametrize("limit", ["true", "0", '"7"', "null"])
async def test_without_an_announced_limit_the_default_applies(limit: str) -> None:
    http = HttpSession()
    try:
        http.hear(f'0{{"maxPayload": {limit}, {PINGS}}}')
        assert (http.max_payload, http.heartbeat_s) == (None, 8.0)
    finally:
        await http.close()
