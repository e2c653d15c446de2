"""What is ordinary is not logged as an error."""

import asyncio
import json
import logging

import aiohttp
import pytest

from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.waiting import eventually


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("transports", [["polling"], ["polling", "websocket"], ["websocket"]])
async def test_a_client_that_disconnects_leaves_no_warning_in_the_log(
    nats_url: str, transports: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_world(nats_url) as world:
        sessions = world.gateways[0].sessions
        for again in range(3):
            async with connected(world.url, transports=transports) as client:
                assert await client.join("agent", "anna", "office") == [True, None]
                if again:
                    await client.call("server:leave_office", {"office_id": "office"})
            await eventually(lambda: len(sessions) == 0)
    assert warnings(caplog) == []


async def test_a_polling_client_that_sends_after_its_disconnect_is_told_that_its_session_ended(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_world(nats_url) as world, aiohttp.ClientSession() as http:
        url = f"{world.url}/socket.io/?EIO=4&transport=polling"

        async def post(said: str) -> int:
            async with http.post(url, data=said) as answer:
                return answer.status

        async with http.get(url) as opened:
            url += f"&sid={json.loads((await opened.text())[1:])['sid']}"
        assert await post("40/smcp,") == 200
        async with http.get(url) as connected_to_namespace:
            assert "40/smcp" in await connected_to_namespace.text()
        poll = asyncio.create_task(http.get(url))
        await eventually(lambda: len(world.gateways[0].sessions) == 1)
        answers = await asyncio.gather(*(post(said) for said in ("41/smcp,", "1", "1", "3", "1")))
        assert set(answers) <= {200, 400}
        (await poll).close()
        await eventually(lambda: len(world.gateways[0].sessions) == 0)
    assert warnings(caplog) == []
