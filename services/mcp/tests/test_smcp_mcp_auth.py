"""Who may use an office over HTTP, and which of its tools, by real keys and JWTs; the gateway is scripted."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp.client.auth.utils import build_protected_resource_metadata_discovery_urls
from mcp.shared.auth import ProtectedResourceMetadata
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceLink, TextResourceContents
from pydantic import ValidationError
from starlette.datastructures import Headers

from smcp_agent import tool_calls
from smcp_auth import api_keys as key_file
from smcp_auth import authenticator
from smcp_auth.api_keys import new_key
from smcp_bus.limits import Rate
from smcp_mcp import app as mcp_app
from smcp_mcp.settings import McpSettings, check_access
from smcp_service.settings import SettingsError
from smcp_testing import issuer
from smcp_testing.bridged import ERAS
from smcp_testing.context_computer import WINDOW, computers_at
from smcp_testing.fake_gateway import fake_gateway, tool
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.gateway_world import gateway_world
from smcp_testing.issuer import ISSUER, shared_token
from smcp_testing.mcp_service import INITIALIZE, META, OfficeClient, Service, mcp_service, office_client
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

COMMAND = Path(sys.executable).with_name("smcp-mcp")
SECRET = "a shared secret of the tests, long enough"
PUBLIC = "https://mcp.example"
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}
LAB = {"offices": ["lab-*"], "roles": ["agent"]}
READS = {"MCP_TOOL_ANNOTATION": '{"readOnlyHint": true}'}


def token(**claims: Any) -> str:
    return shared_token(SECRET, **{"smcp": LAB, **claims})


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def key_of(path: Path, **more: Any) -> str:
    key, entry = new_key(**{"subject": None, "names": ["*"], **LAB, **more})
    key_file.add(path, entry)
    return key


@asynccontextmanager
async def with_tokens(gateway_url: str, **more: Any) -> AsyncIterator[Service]:
    settings = issuer.settings(auth_secret=SECRET, mcp_public_url=PUBLIC)
    async with mcp_service(gateway_url, **settings, **more) as service:
        yield service


async def post(url: str, body: Any = PING, **headers: str) -> tuple[int, Headers, Any]:
    """Status, headers and JSON of the answer."""
    async with aiohttp.ClientSession() as http:
        async with http.post(url, json=body, headers={**ACCEPT, **headers}) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, Headers(dict(answer.headers)), json.loads(text) if is_json else text


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (lambda: None, 401, ""),
        (lambda: "nonsense", 401, 'error="invalid_token"'),
        (lambda: shared_token("another secret of the tests, long enough", smcp=LAB), 401, 'error="invalid_token"'),
        (lambda: token(exp=time.time() - 1), 401, "the token has expired"),
        (lambda: token(aud="somebody-else"), 401, "the token is not accepted: Audience doesn't match"),
        (lambda: token(aud=f"{PUBLIC}/mcp/lab-2"), 401, "the token is not accepted: Audience doesn't match"),
        (lambda: token(aud=PUBLIC), 401, "the token is not accepted: Audience doesn't match"),
        (lambda: token(smcp={"offices": ["kitchen"]}), 403, 'error="insufficient_scope"'),
        (lambda: token(smcp={**LAB, "roles": ["computer"]}), 403, 'error="insufficient_scope"'),
    ],
)
async def test_a_client_without_a_right_token_is_refused(
    sent: Callable[[], str | None], status: int, said: str
) -> None:
    text = sent()  # made now: it is good for ten minutes, and a run of all tests may take longer
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        answer = await post(service.office("lab-1"), **(bearer(text) if text else {}))
        assert answer[0] == status
        challenge = answer[1]["WWW-Authenticate"]
        metadata = f'resource_metadata="{PUBLIC}/.well-known/oauth-protected-resource/mcp/lab-1"'
        assert challenge.startswith(f"Bearer {metadata}")
        assert said in challenge
        assert ("error=" in challenge) is (text is not None)
        assert answer[2]["error"]["message"].startswith(f"error {status}: ")
        assert not gateway.received


@pytest.mark.parametrize("audience", [issuer.AUDIENCE, f"{PUBLIC}/mcp/lab-1", ["x", f"{PUBLIC}/mcp/lab-1"]])
@ERAS
async def test_a_token_for_the_office_or_the_audience_of_the_settings_is_accepted(era: str, audience: Any) -> None:
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        gateway.computers["red"] = [tool("echo")]
        async with office_client(service.office("lab-1"), era, **bearer(token(aud=audience))) as client:
            assert await client.text("echo") == "echo"


async def test_the_metadata_name_the_office_and_the_issuer_where_the_mcp_sdk_looks_for_them() -> None:
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service, aiohttp.ClientSession() as http:
        asked = service.office("lab%201")
        first, *_ = build_protected_resource_metadata_discovery_urls(None, asked)
        async with http.get(first) as answer:
            found = ProtectedResourceMetadata.model_validate_json(await answer.text())
        assert str(found.resource) == f"{PUBLIC}/mcp/lab%201"
        assert [str(each).rstrip("/") for each in found.authorization_servers] == [ISSUER]
        assert found.resource_name == "Office lab 1"


async def test_keys_are_accepted_and_name_no_issuer(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = key_of(keys)
    async with fake_gateway() as gateway, mcp_service(gateway.url, auth_keys=keys, mcp_public_url=PUBLIC) as service:
        gateway.computers["red"] = [tool("echo")]
        async with office_client(service.office("lab-1"), **bearer(key)) as client:
            assert await client.names() == ["echo"]
        status, headers, _ = await post(service.office("lab-1"))
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        async with aiohttp.ClientSession() as http:
            for path in ("/.well-known/oauth-protected-resource/mcp/lab-1", "/"):
                async with http.get(f"{service.url}{path}") as answer:
                    assert answer.status == 404


async def test_wrong_tokens_are_throttled_and_right_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "WRONG_TOKENS", Rate(1 / 300, 20 * 300.0))
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        url = service.office("lab-1")
        statuses = [(await post(url, **bearer("wrong")))[0] for _ in range(21)]
        assert statuses == [401] * 20 + [429]
        _, headers, _ = await post(url, **bearer("wrong"))
        assert 1 <= int(headers["Retry-After"]) <= 300
        assert (await post(url, INITIALIZE, **bearer(token())))[0] == 200


async def test_the_rest_of_a_result_is_read_by_its_user_alone() -> None:
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        gateway.computers["red"] = [tool("echo")]
        url = f"{service.office('lab-1')}?max_chars=1"
        async with (
            office_client(url, **bearer(token(sub="anna"))) as anna,
            office_client(url, **bearer(token(sub="eve"))) as eve,
        ):
            link = (await anna.client.call_tool("echo", {})).content[-1]
            assert isinstance(link, ResourceLink)
            (page, _) = (await anna.client.read_resource(link.uri)).contents
            assert isinstance(page, TextResourceContents)
            assert page.text == "c"
            with pytest.raises(MCPError, match=r"is not kept \(any more\)"):
                await eve.client.read_resource(link.uri)


async def test_a_session_cannot_be_used_with_the_token_of_another_subject() -> None:
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        url = service.office("lab-1")
        _, headers, _ = await post(url, INITIALIZE, **bearer(token(sub="anna")))
        session = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "Mcp-Protocol-Version": "2025-11-25"}
        assert (await post(url, **session, **bearer(token(sub="eve"))))[0] == 404
        assert (await post(url, **session))[0] == 401
        renewed = token(sub="anna", jti="the next one")
        assert (await post(url, **session, **bearer(renewed)))[0] == 200


@asynccontextmanager
async def stream(url: str, credential: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """The stream of notifications of a new session."""
    _, headers, _ = await post(url, INITIALIZE, **bearer(credential))
    session = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "Mcp-Protocol-Version": "2025-11-25"}
    async with aiohttp.ClientSession() as http:
        async with http.get(url, headers={**ACCEPT, **session, **bearer(credential)}) as answer:
            assert answer.status == 200
            yield answer


async def test_a_stream_ends_when_its_token_expires_and_a_call_is_answered() -> None:
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        gateway.computers["red"] = [tool("wait")]
        answered = asyncio.Event()

        async def wait(_: Any) -> Any:
            await answered.wait()
            return {"content": [{"type": "text", "text": "done"}], "isError": False}

        gateway.answers["client:tool_call"] = wait
        credential = token(exp=time.time() + 4)
        async with office_client(service.office("lab-1"), "2026-07-28", **bearer(credential)) as client:
            assert await client.names() == ["wait"]  # else the MCP SDK asks for them after the call
            call = asyncio.create_task(client.text("wait"))
            await eventually(lambda: gateway.seen("client:tool_call"))
            async with stream(service.office("lab-1"), credential) as answer, asyncio.timeout(30):
                await answer.content.read()
            answered.set()
            assert await call == "done"


async def test_a_revoked_key_ends_its_streams_and_its_calls_and_nobody_elses(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    mine, other = key_of(keys, subject="anna"), key_of(keys, subject="otto")
    async with fake_gateway() as gateway, mcp_service(gateway.url, auth_keys=keys) as service:
        gateway.computers["red"] = [tool("wait")]
        gateway.answers["client:tool_call"] = gateway.never
        url = service.office("lab-1")
        async with (
            office_client(url, "2026-07-28", **bearer(mine)) as client,
            stream(url, other) as kept,
            stream(url, mine) as ended,
        ):
            call = asyncio.create_task(client.text("wait"))
            await eventually(lambda: gateway.seen("client:tool_call"))
            key_file.remove(keys, "anna")
            async with asyncio.timeout(30):
                await ended.content.read()
                with pytest.raises(Exception, match="the token was revoked"):
                    await call
            assert not kept.content.at_eof()
        assert (await post(url, **bearer(mine)))[0] == 401


@ERAS
async def test_a_client_lists_calls_and_reads_what_its_token_is_for(era: str) -> None:
    rights = {**LAB, "computers": ["red"], "tools": ["read_*"], "read_only": True}
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        computers_at(gateway, "blue", "red")
        gateway.computers["red"] = [
            {**tool("read_a"), "meta": READS},
            tool("read_b"),
            {**tool("drop"), "meta": READS},
        ]
        gateway.computers["blue"] = [{**tool("read_c"), "meta": READS}]
        url = service.office("lab-1")
        async with (
            office_client(url, era, **bearer(token(sub="anna", smcp=rights))) as anna,
            office_client(url, era, **bearer(token(sub="otto"))) as otto,
        ):
            assert await anna.names() == ["read_a"]
            assert await otto.names() == ["drop", "read_a", "read_b", "read_c"]
            for name in ("read_b", "read_c", "drop", "nothing"):
                said = f"!Error 404: there is no tool {name!r} that you may use"
                assert (await anna.text(name)).removesuffix("; did you mean 'read_a'?") == said
            assert gateway.seen("client:tool_call") == []
            assert [each.uri for each in (await anna.client.list_resources()).resources] == [WINDOW]
            for uri in (f"smcp://blue/{WINDOW}", f"smcp://nobody/{WINDOW}", "window://nothing"):
                with pytest.raises(MCPError, match="no Computer that you may ask has this resource"):
                    await anna.client.read_resource(uri)


async def test_the_parameters_of_a_tool_that_a_client_may_not_use_decide_nothing_about_its_call() -> None:
    mine, others = token(sub="anna", smcp={**LAB, "tools": ["echo"]}), token(sub="otto")
    when = {"type": "string", "x-mcp-header": "When"}
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        gateway.computers["red"] = [tool("echo"), tool("wipe", type="object", properties={"when": when})]

        async def call_without_header(name: str, text: str) -> tuple[int, str]:
            params = {"name": name, "arguments": {"when": "now"}, "_meta": META}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name}
            status, _, answer = await post(service.office("lab-1"), body, **headers, **bearer(text))
            return status, str(answer)

        assert (await call_without_header("wipe", others))[0] == 400
        status, answer = await call_without_header("wipe", mine)
        assert (status, answer.replace("wipe", "none")) == await call_without_header("none", mine)
        assert gateway.seen("client:tool_call") == []


@ERAS
async def test_a_call_says_for_whom_it_is_and_no_token_is_passed_on(era: str) -> None:
    mine, others = token(sub="anna", smcp={**LAB, "tools": ["e*"]}), token(sub="otto")
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        gateway.computers["red"] = [tool("echo")]
        url = service.office("lab-1")
        async with office_client(url, era, **bearer(mine)) as anna, office_client(url, era, **bearer(others)) as otto:
            await asyncio.gather(*(client.text("echo") for client in (anna, otto)))
        users = {call["a2c_on_behalf"]["subject"]: call["a2c_on_behalf"] for call in gateway.seen("client:tool_call")}
        assert users["anna"]["tools"] == ["e*"]
        assert users["otto"].keys() == {"identity", "subject"}
        assert users["anna"]["identity"] != users["otto"]["identity"]
        assert not [each for each in (mine, others) if each in str(gateway.received)]


async def test_a_page_of_elsewhere_is_refused_although_it_has_a_token() -> None:
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        status, _, body = await post(service.office("lab-1"), **bearer(token()), Origin="http://evil.example")
        assert (status, body["error"]["data"]) == (403, {"field": "Origin"})
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        status, _, body = await post(service.office("lab-1"), **bearer(token()), **rebound)
        assert (status, body["error"]["data"]) == (403, {"field": "Origin"})
        named = {"allowed_hosts": "mcp.example"}
    async with fake_gateway() as gateway, with_tokens(gateway.url, **named) as service:
        status, _, body = await post(service.office("lab-1"), **bearer(token()), Host="evil.example")
        assert (status, body["error"]["data"]) == (403, {"field": "Host"})
        assert (await post(service.office("lab-1"), INITIALIZE, **bearer(token()), Host="mcp.example"))[0] == 200


async def test_a_page_that_reaches_the_service_by_a_name_of_its_own_has_no_token_and_is_refused() -> None:
    async with fake_gateway() as gateway, with_tokens(gateway.url) as service:
        assert (await post(service.office("lab-1"), INITIALIZE, Host="evil.example"))[0] == 401
        assert gateway.seen("server:join_office") == []
        assert (await post(service.office("lab-1"), INITIALIZE, **bearer(token()), Host="proxy.example"))[0] == 200


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"url": "http://one:8000,two"}, "SMCP_URL: 'two' is not like http://host:port"),
        ({"url": " , "}, "SMCP_URL: '' is not like http://host:port"),
        ({"token": "two words"}, "SMCP_TOKEN: has to be 1 to 8192 visible ASCII characters without spaces"),
        ({"token": "key", "token_file": "key.txt"}, "SMCP_TOKEN and SMCP_TOKEN_FILE: set only one"),
    ],
)
def test_settings_that_reach_no_gateway_are_refused_at_the_start(wrong: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_access(McpSettings.model_validate(wrong))
    assert refused.value.problems == (why,)


def test_an_issuer_that_clients_cannot_find_is_refused_at_the_start() -> None:
    chosen = {**issuer.settings(auth_secret=SECRET, mcp_public_url=PUBLIC), "auth_issuer": "our issuer"}
    with pytest.raises(SettingsError, match="SMCP_AUTH_ISSUER: must be a URL when SMCP_MCP_PUBLIC_URL is set"):
        check_access(McpSettings(**chosen))
    for wrong in ("mcp.example", "ftp://mcp.example", "https://mcp.example/path", "https://mcp.example?x=1"):
        with pytest.raises(ValidationError, match="is not a URL without a path"):
            McpSettings(mcp_public_url=wrong)


@pytest.mark.parametrize(
    ("grants", "why"),
    [
        (None, "the gateway refuses SMCP_TOKEN: "),
        ({}, "the gateway refuses SMCP_TOKEN: the key or token may not call for users: it needs `delegates`"),
        ({"delegates": True}, None),
    ],
)
async def test_smcp_mcp_is_not_ready_while_its_own_token_is_missing_or_may_not_delegate(
    nats_url: str, tmp_path: Path, grants: dict[str, Any] | None, why: str | None
) -> None:
    keys = tmp_path / "keys.json"
    users = key_of(keys)
    own = {} if grants is None else {"token": key_of(keys, **{**LAB, "offices": ["*"], **grants})}

    def problem() -> str | None:
        return service.readiness.problems().get("mcp_gateway_connection")

    async with (
        gateway_world(nats_url, settings={"auth_keys": keys}) as world,
        mcp_service(world.url, auth_keys=keys, **own) as service,
    ):
        assert users not in own.values()
        await eventually(lambda: problem() != "not connected to a gateway yet")
        assert problem() is None if why is None else (problem() or "").startswith(why)


async def test_smcp_mcp_is_ready_only_while_a_gateway_lets_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_app, "CHECK_S", 0.05)
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:

        def problem() -> str | None:
            return service.readiness.problems().get("mcp_gateway_connection")

        await eventually(lambda: problem() is None)
        await gateway.stop()
        cannot = f"cannot connect to {gateway.url}: Connection refused"
        await eventually(lambda: problem() == cannot)
        await gateway.start()
        await eventually(lambda: problem() is None)


async def test_smcp_mcp_logs_that_it_listens_and_that_it_is_ready_once_a_gateway_lets_it_in() -> None:
    async with fake_gateway() as gateway:
        url = gateway.url
        await gateway.stop()
        variables = {"SMCP_URL": url, "SMCP_MCP_PORT": "0", "SMCP_HEALTH_PORT": "0"}
        async with service_process(*born(COMMAND, knows=COMMANDS), env=variables) as process:
            assert (await process.logged("listening"))["url"].startswith("http://127.0.0.1:")
            await process.logged("not ready")
            await gateway.start()
            await process.logged("ready")
            told = [line["event"] for line in process.log if line["event"] in ("listening", "not ready", "ready")]
            assert told == ["listening", "not ready", "ready"]


async def test_smcp_mcp_whose_own_quota_is_used_up_is_ready() -> None:
    async with fake_gateway() as gateway:
        quota = {"quota": "sockets", "limit": 3, "retry_after_s": 10}
        gateway.connect_error = {"code": 429, "message": "this key has reached its quota sockets", "details": quota}
        async with mcp_service(gateway.url) as service:
            await eventually(lambda: "mcp_gateway_connection" not in service.readiness.problems())


async def test_long_results_of_one_user_push_out_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "KEPT_TEXTS", 3)
    keys = tmp_path / "keys.json"
    mine, others = key_of(keys, subject="anna"), key_of(keys, subject="evil")

    async def answer(_: dict[str, Any]) -> Any:
        return {"content": [{"type": "text", "text": "x" * 100}]}

    async def link(client: OfficeClient) -> str:
        found = (await client.client.call_tool("long", {})).content[-1]
        assert isinstance(found, ResourceLink)
        return found.uri

    async with fake_gateway() as gateway, mcp_service(gateway.url, auth_keys=keys) as service:
        gateway.computers["red"] = [tool("long")]
        gateway.answers["client:tool_call"] = answer
        url = f"{service.office('lab-1')}?max_chars=90"
        async with (
            office_client(url, "2026-07-28", **bearer(mine)) as anna,
            office_client(url, "2026-07-28", **bearer(others)) as evil,
        ):
            kept = await link(anna)
            first, *_, last = [await link(evil) for _ in range(5)]
            for client, uri in ((anna, kept), (evil, last)):
                (content,) = (await client.client.read_resource(uri)).contents
                assert isinstance(content, TextResourceContents)
                assert content.text == "x" * 10
            with pytest.raises(MCPError, match="is not kept"):
                await evil.client.read_resource(first)
