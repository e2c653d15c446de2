"""The version rule and what a client says about itself, over polling and WebSocket."""

import json

import aiohttp
import pytest

from smcp_testing.gateway_world import connected, gateway_world

TRANSPORTS = ["polling", "websocket"]


@pytest.mark.rule(
    "answers.connect.refused.{status,header,body.code,body.message,body.server_version}",
    "answers.connect.refused.{body.client_version,body.min_supported,body.max_supported,before}",
)
@pytest.mark.parametrize("version", ["0.1.9", "0.5.0", "1.0.0", "0.4", "new", ""])
async def test_another_version_is_refused_over_both_transports(nats_url: str, version: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, aiohttp.ClientSession() as http:
        base = f"{world.url}/socket.io/?EIO=4&a2c_version={version}"
        async with http.get(f"{base}&transport=polling") as response:
            assert response.status == 400
            assert response.headers["X-A2C-Error-Code"] == "4008"
            body = await response.json()
        assert set(body) == {
            "code", "message", "server_version", "client_version", "min_supported", "max_supported",
        }  # fmt: skip
        assert body["code"] == 4008
        assert body["client_version"] == version
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(f"{base}&transport=websocket")
        assert refused.value.status == 400
        assert refused.value.headers is not None
        assert refused.value.headers["X-A2C-Error-Code"] == "4008"
        assert len(world.gateways[0].sessions) == 0


@pytest.mark.rule("answers.connect.{transports.polling,transports.websocket,version.optional,version.shown}")
@pytest.mark.parametrize("query", ["", "?a2c_version=0.2.0", "?a2c_version=0.4.7"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_no_version_and_versions_0_2_to_0_4_are_accepted(nats_url: str, query: str, transport: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url + query, transports=[transport]) as client,
    ):
        assert await client.join("agent", "anna", "office") == [True, None]
        listed = await client.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": "office"})
        said = query.removeprefix("?a2c_version=") or None
        assert listed["sessions"][0].get("a2c_version") == said


@pytest.mark.rule("answers.connect.max_message", "answers.connect.max_values")
@pytest.mark.parametrize(
    ("auth", "field"),
    [
        ("secret", "auth"),
        ([1], "auth"),
        ({"max_message": "4"}, "auth.max_message"),
        ({"max_message": 0}, "auth.max_message"),
        ({"max_message": True}, "auth.max_message"),
        ({"max_values": "4"}, "auth.max_values"),
        ({"max_values": 0}, "auth.max_values"),
        ({"max_values": None}, "auth.max_values"),
        ({"flat_errors": "yes"}, "auth.flat_errors"),
        ({"flat_errors": 1}, "auth.flat_errors"),
        ({"flat_errors": None}, "auth.flat_errors"),
    ],
)
async def test_an_invalid_auth_object_is_refused_naming_the_field(nats_url: str, auth: object, field: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket:
            await socket.receive()
            await socket.send_str(f"40/smcp,{json.dumps(auth)}")
            text = (await socket.receive(timeout=30)).data
        assert text.startswith("44/smcp,")
        refusal = json.loads(text.removeprefix("44/smcp,"))
        assert field in refusal["message"]
        assert refusal["data"]["code"] == 400
        assert refusal["data"]["details"]["field"] == field
        assert len(world.gateways[0].sessions) == 0


@pytest.mark.rule("events.namespace", "answers.connect.namespace", "computer.resources.events.namespace")
async def test_other_namespaces_are_not_served(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket:
            await socket.receive()
            await socket.send_str("40")
            assert (await socket.receive()).data.startswith("44")


async def test_a_client_cannot_trigger_internal_handlers_of_the_library(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, connected(world.url) as client:
        for name in ("connect", "disconnect"):
            answer = await client.call(name, {"x": 1})
            assert answer["code"] == 400
        assert len(world.gateways[0].sessions) == 1


async def test_health_is_answered_on_the_same_port(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, aiohttp.ClientSession() as http:
        async with http.get(f"{world.url}/livez") as response:
            assert response.status == 200
        async with http.get(f"{world.url}/readyz") as response:
            checks = (await response.json())["checks"]
        assert set(checks) == {"nats", "registry"}
