"""The MCP SDK's client gets a token from the issuer that the metadata name, and calls a tool through a real gateway."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from smcp_auth import api_keys as key_file
from smcp_auth.api_keys import new_key
from smcp_bus.audit import Batch, Sink, Trail
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import RIGHTS
from smcp_testing.gateway_world import gateway_world, reply
from smcp_testing.issuer import key_set, signing_key
from smcp_testing.mcp_service import mcp_service
from smcp_testing.ports import Ports

SIGNING = signing_key("issuer")
TOOL = {"name": "look", "description": "", "params_schema": {"type": "object"}, "return_schema": None}


class AuthorizationServer:
    """Gives everybody a token for the resource that is asked for (RFC 8707)."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        """The resources."""

    async def metadata(self, _: web.Request) -> web.Response:
        paths = {"authorization": "authorize", "token": "token", "registration": "register"}
        endpoints = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in paths.items()}
        more = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
        return web.json_response({"issuer": self.url, **endpoints, **more})

    async def register(self, request: web.Request) -> web.Response:
        return web.json_response({**await request.json(), "client_id": "client"}, status=201)

    async def token(self, request: web.Request) -> web.Response:
        resource = str((await request.post())["resource"])
        self.asked.append(resource)
        allowed = {"offices": ["lab-1"], "roles": ["agent"], "tools": ["look"]}
        access = SIGNING.token(sub="otto", aud=resource, iss=self.url, smcp=allowed)
        return web.json_response({"access_token": access, "token_type": "Bearer", "expires_in": 600})


@asynccontextmanager
async def authorization_server() -> AsyncIterator[AuthorizationServer]:
    server = AuthorizationServer()
    app = web.Application()
    app.add_routes(
        [
            web.get("/.well-known/oauth-authorization-server", server.metadata),
            web.post("/register", server.register),
            web.post("/token", server.token),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()


class Storage:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def oauth(url: str) -> OAuthClientProvider:
    """As a user who agrees to everything in the browser."""
    opened: list[str] = []

    async def redirect(target: str) -> None:
        opened.append(target)

    async def callback() -> AuthorizationCodeResult:
        state = parse_qs(urlsplit(opened[-1]).query)["state"][0]
        return AuthorizationCodeResult(code="code", state=state)

    about = OAuthClientMetadata(client_name="test", redirect_uris=[AnyUrl("http://127.0.0.1:1/callback")])
    return OAuthClientProvider(url, about, Storage(), redirect, callback)


@pytest.mark.timeout(120)
async def test_a_client_finds_the_issuer_and_the_computer_and_the_audit_trail_are_told_of_its_user(
    nats_url: str, tmp_path: Path
) -> None:
    calls: list[Incoming] = []
    records: list[dict[str, Any]] = []

    class Kept(Sink):
        def send(self, batch: Batch) -> None:
            records.append(json.loads(batch.body))

    async def serve(verb: str, incoming: Incoming) -> Reply:
        if verb == "tool_call":
            calls.append(incoming)
            return reply({"content": [{"type": "text", "text": "seen"}], "isError": False})
        return reply({"tools": [TOOL, {**TOOL, "name": "move"}], "req_id": json.loads(incoming.body)["req_id"]})

    keys, jwks, port = tmp_path / "keys.json", tmp_path / "jwks.json", Ports().take()
    jwks.write_text(key_set(SIGNING))
    service_key, entry = new_key(subject="mcp", offices=["*"], roles=["agent"], names=["*"], delegates=True)
    key_file.add(keys, entry)
    public = f"http://127.0.0.1:{port}"
    async with (
        authorization_server() as issuer,
        gateway_world(nats_url, settings={"auth_keys": keys}) as world,
        world.computer("lab-1", "box", serve),
    ):
        world.gateways[0]._audit.trail = Trail(logging.getLogger("test"), open_sink=lambda _: Kept())
        settings = {"auth_jwks": str(jwks), "auth_audience": "other", "auth_issuer": issuer.url}
        where = {"mcp_port": port, "mcp_public_url": public, "token": service_key}
        async with mcp_service(world.url, **settings, **where) as service:
            url = service.office("lab-1")
            async with create_mcp_http_client(auth=oauth(url)) as http:
                async with Client(streamable_http_client(url, http_client=http)) as client:
                    assert [each.name for each in (await client.list_tools()).tools] == ["look"]
                    assert not (await client.call_tool("look", {})).is_error
                    assert (await client.call_tool("move", {})).is_error
        assert set(issuer.asked) == {f"{public}/mcp/lab-1"}
        assert [json.loads(call.headers[RIGHTS]) for call in calls] == [
            {"holder": "otto", "delegate": "mcp", "tools": ["look"]}
        ]
        told = [(record["kind"], record["subject"], record["name"]) for record in records]
        assert told == [("join", "mcp", "smcp-mcp"), ("call", "otto", "smcp-mcp"), ("leave", "mcp", "smcp-mcp")]
