"""Offices as MCP clients of both eras use them over HTTP; the gateway is scripted."""

import asyncio
import gzip
import json
import math
import socket
from typing import Any

import aiohttp
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, ResourceLink, TextContent, TextResourceContents
from pydantic import ValidationError
from yarl import URL

from smcp_agent import CannotConnect, SmcpAgent
from smcp_agent.mcp.resources import Context
from smcp_agent.mcp.tools import OfficeTools
from smcp_mcp.settings import McpSettings
from smcp_testing.bridged import ERAS
from smcp_testing.fake_gateway import fake_gateway, tool
from smcp_testing.mcp_service import INITIALIZE, META, OfficeClient, mcp_service, office_client
from smcp_testing.waiting import Stopwatch, eventually, within

PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
HEADERS = {"Accept": "application/json, text/event-stream"}


@ERAS
async def test_a_client_lists_and_calls_the_tools_of_an_office(era: str) -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        gateway.computers["red"] = [tool("echo")]
        async with office_client(service.office(), era) as client:
            assert await client.names() == ["echo"]
            assert await client.text("echo") == "echo"
        (join,) = gateway.seen("server:join_office")
        assert join == {"role": "agent", "name": "smcp-mcp", "office_id": "office"}


async def test_clients_of_both_eras_share_the_one_agent_of_an_office() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        gateway.computers["red"] = [tool("echo")]
        async with (
            office_client(service.office(), "legacy") as first,
            office_client(service.office(), "2026-07-28") as second,
        ):
            assert set(await asyncio.gather(first.text("echo"), second.text("echo"))) == {"echo"}
            await gateway.enter("blue", [tool("look")])
            async with within(0.2):
                await eventually(lambda: first.heard)
            assert await first.names() == await second.names() == ["echo", "look"]
        assert len(gateway.seen("server:join_office")) == 1


async def test_a_call_of_a_client_of_2026_lists_no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = 0
    entries = OfficeTools.entries

    async def count(tools: OfficeTools, context: Context) -> list[dict[str, Any]]:
        nonlocal lists
        lists += 1
        return await entries(tools, context)

    monkeypatch.setattr(OfficeTools, "entries", count)
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        gateway.computers["red"] = [tool("echo")]
        async with office_client(service.office(), "2026-07-28") as client:
            assert await client.names() == ["echo"]
            for number in range(3):
                assert await client.text("echo", number=number) == "echo"
    assert lists == 1


async def test_a_parameter_header_that_contradicts_the_arguments_is_refused() -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "look", "arguments": {"region": "east"}, "_meta": META},
    }
    headers = {**HEADERS, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "look"}
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        gateway.computers["red"] = [tool("look", type="object", properties={"region": region})]
        for said, status in (("west", 400), ("east", 200)):
            async with http.post(service.office(), json=call, headers={**headers, "Mcp-Param-Region": said}) as answer:
                assert answer.status == status, await answer.text()


@ERAS
async def test_a_seat_that_another_agent_holds_is_an_error_that_names_it(era: str) -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        gateway.refusal = "the office already has an Agent: 'cook', since 2026-11-26T10:00:00Z"
        gateway.details = {"holder": "cook", "since": "2026-11-26T10:00:00Z"}
        with pytest.raises(Exception) as raised:  # noqa: PT011 -- a group of the MCP SDK's errors
            async with office_client(service.office(), era) as client:
                await client.names()
        assert "'cook', since 2026-11-26T10:00:00Z" in str(_leaf(raised.value))


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def test_an_office_that_nobody_uses_is_left_and_joined_again() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url, mcp_idle_s=0.2) as service:
        gateway.computers["red"] = [tool("echo")]
        async with office_client(service.office(), "2026-07-28") as client:
            assert await client.text("echo") == "echo"
            await eventually(lambda: gateway.seen("server:leave_office"))
            assert await client.text("echo") == "echo"
        await eventually(lambda: service.counted("smcp_mcp_offices") == 0)


async def test_an_open_stream_counts_as_use() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url, mcp_idle_s=0.2) as service:
        async with office_client(service.office(), "2026-07-28") as client:
            async with client.client.listen(tools_list_changed=True) as changes:
                await gateway.enter("red", [tool("echo")])
                await anext(aiter(changes))
                await gateway.leave("red")
                await anext(aiter(changes))
                assert not gateway.seen("server:leave_office")
            await eventually(lambda: gateway.seen("server:leave_office"))


async def test_a_stopping_service_leaves_its_offices_and_ends_their_calls() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("sleep")]
        gateway.answers["client:tool_call"] = gateway.never
        async with mcp_service(gateway.url) as service:
            url = service.office()
            client = office_client(url, "2026-07-28")
            call = asyncio.create_task((await client.__aenter__()).text("sleep"))
            await eventually(lambda: gateway.seen("client:tool_call"))
        with pytest.raises(Exception, match="smcp-mcp left the office before the call ended"):
            await call
        await client.__aexit__(None, None, None)
        assert gateway.seen("server:leave_office")


async def test_a_stopping_service_does_not_wait_for_a_join_that_is_not_answered() -> None:
    async with fake_gateway() as gateway, aiohttp.ClientSession() as http:
        gateway.answers["server:join_office"] = gateway.never
        async with mcp_service(gateway.url) as service:
            request = asyncio.create_task(_status(http, service.office()))
            await eventually(lambda: gateway.seen("server:join_office"))
            watch = Stopwatch()
        assert watch.undisturbed < 5
        assert await request == 503


async def _status(http: aiohttp.ClientSession, url: str) -> int:
    async with http.post(url, json=INITIALIZE, headers=HEADERS) as answer:
        return answer.status


@pytest.mark.parametrize(("header", "value"), [("Host", "evil.example"), ("Origin", "http://evil.example")])
async def test_a_web_page_of_elsewhere_is_refused(header: str, value: str) -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        for method in ("POST", "GET", "DELETE"):
            async with http.request(method, service.office(), json=PING, headers={**HEADERS, header: value}) as answer:
                assert answer.status == 403
                assert (await answer.json())["error"]["data"] == {"field": header}
        assert not gateway.received


async def test_a_web_page_of_an_allowed_origin_may_use_an_office() -> None:
    page = {"Origin": "https://page.example.com"}
    async with fake_gateway() as gateway, aiohttp.ClientSession() as http:
        async with mcp_service(gateway.url, allowed_origins="https://page.example.com") as service:
            asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "mcp-method"}
            async with http.options(service.office(), headers=asked) as answer:
                assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example.com"
                assert answer.headers["Access-Control-Allow-Headers"] == "mcp-method"
            async with http.post(service.office(), json=PING, headers={**HEADERS, **page}) as answer:
                assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example.com"
                assert "Mcp-Session-Id" in answer.headers["Access-Control-Expose-Headers"]


async def test_a_compressed_body_is_refused() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        headers = {**HEADERS, "Content-Encoding": "gzip"}
        async with http.post(service.office(), data=gzip.compress(b"{}"), headers=headers) as answer:
            assert answer.status == 415
            assert (await answer.json())["error"]["message"].startswith("Content-Encoding: ")
        assert not gateway.received


async def test_an_office_has_a_limited_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_mcp.offices.MAX_SESSIONS", 1)
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        gateway.computers["red"] = [tool("echo")]
        async with office_client(service.office(), "legacy") as client:
            assert await _status(http, service.office()) == 503
            assert await client.text("echo") == "echo"


async def test_connections_send_small_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept
    accepted: list[int] = []

    def note(listener: socket.socket) -> tuple[socket.socket, Any]:
        connection, address = accept(listener)
        if listener.getsockname()[1] == port:
            accepted.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return connection, address

    monkeypatch.setattr(socket.socket, "accept", note)
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        port = int(service.url.rpartition(":")[2])
        assert await _status(http, service.office("")) == 400
    assert accepted == [1]


async def test_a_body_above_the_limit_is_refused() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url, max_payload=64 * 1024) as service:
        async with aiohttp.ClientSession() as http:
            async with http.post(service.office(), data=b" " * 65537, headers=HEADERS) as answer:
                assert (answer.status, (await answer.json())["error"]["message"]) == (
                    413,
                    "the request has more than 65536 bytes",
                )


@ERAS
async def test_each_client_says_in_its_url_how_tools_are_listed(era: str) -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url, mcp_max_tools=1, mcp_always_list="l*") as service:
        gateway.computers["red"] = [tool("echo"), tool("look")]
        search = ["search_tools", "describe_tool", "call_tool", "look"]
        for query, names in (("", search), ("?tools=all", ["echo", "look"]), ("?tools=search", search)):
            async with office_client(service.office() + query, era) as client:
                assert await client.names() == names
                assert await client.text("echo") == "echo"


async def test_a_wrong_way_to_list_tools_is_400_and_named() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        async with http.post(service.office() + "?tools=some", json=PING, headers=HEADERS) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert (error["message"], error["data"]) == ("tools: must be 'auto', 'all' or 'search'", {"field": "tools"})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a" * 200, "a name has 1 to 128 characters, this one has 200"),
        ("", "missing; the URL has to end in its name, as in /mcp/home"),
        ("lab%0Ax", "holds a control character, or a lone surrogate"),
        ("%ff", "is not UTF-8 text"),
        ("%ED%A0%80", "is not UTF-8 text"),  # a lone surrogate
    ],
)
async def test_an_office_whose_name_is_wrong_is_400_and_says_why(name: str, why: str) -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        async with http.post(URL(service.office(name), encoded=True), json=INITIALIZE, headers=HEADERS) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert error["message"] == f"the office in the URL: {why}"
        assert error["data"] == {"field": "the office in the URL"}
        assert not gateway.seen("server:join_office")


@pytest.mark.parametrize(("end", "office"), [("home/", "home"), ("home%2F", "home/"), ("a/b", "a/b")])
async def test_a_slash_at_the_end_of_a_url_is_not_of_the_offices_name(end: str, office: str) -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        async with http.post(URL(service.office(end), encoded=True), json=INITIALIZE, headers=HEADERS) as response:
            assert response.status == 200
        assert [each["office_id"] for each in gateway.seen("server:join_office")] == [office]


async def test_a_url_without_an_office_is_400_and_not_redirected() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        url = URL(service.office()).origin() / "mcp"
        async with http.post(url, json=INITIALIZE, headers=HEADERS, allow_redirects=False) as response:
            assert response.status == 400
            assert "as in /mcp/home" in (await response.json())["error"]["message"]


async def test_an_agent_that_connects_to_the_port_of_mcp_clients_learns_that_it_is_no_gateway() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        with pytest.raises(CannotConnect, match=r"what answers there \(HTTP 404\) is not an A2C-SMCP gateway$"):
            async with SmcpAgent(str(URL(service.office()).origin()), office="lab-1", name="bot"):
                pytest.fail("it connected")


async def test_both_unicode_forms_of_a_name_are_one_office() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        for name in ("Bu%CC%88ro", "B%C3%BCro", "Bu%CC%88ro"):
            async with (
                asyncio.timeout(20),
                http.post(URL(service.office(name), encoded=True), json=INITIALIZE, headers=HEADERS) as response,
            ):
                assert response.status == 200
        (join,) = gateway.seen("server:join_office")
        assert join["office_id"] == "B\u00fcro"


SESSION = {"Mcp-Session-Id": "of-nobody"}


@pytest.mark.parametrize(
    ("method", "body", "version", "headers", "status", "why"),
    [
        ("POST", b"{bad", "2025-11-25", {}, 400, "the request is not JSON"),
        ("POST", json.dumps(PING).encode(), "2025-11-25", {}, 400, "method: has to be `initialize`"),
        ("POST", b"[1]", "2026-07-28", {}, 400, "the request is not a JSON object"),
        ("POST", b"{bad", "2026-07-28", {}, 400, "the request is not JSON"),
        ("GET", json.dumps(INITIALIZE).encode(), "2025-11-25", {}, 400, "method: is missing"),
        ("POST", json.dumps(PING).encode(), "2026-07-28", {}, 404, "Method not found"),
        ("POST", json.dumps(INITIALIZE).encode(), "banana", {}, 400, "Unsupported protocol version"),
        ("POST", json.dumps(INITIALIZE).encode(), "banana", SESSION, 400, "Unsupported protocol version"),
        ("POST", json.dumps(PING).encode(), "2025-11-25", SESSION, 404, "Session not found"),
        ("GET", b"", "2025-11-25", SESSION, 404, "Session not found"),
        ("DELETE", b"", "2025-11-25", SESSION, 404, "Session not found"),
    ],
)
async def test_a_request_that_no_client_begins_with_takes_no_seat(
    method: str, body: bytes, version: str, headers: dict[str, str], status: int, why: str
) -> None:
    headers = {**HEADERS, "Content-Type": "application/json", "Mcp-Protocol-Version": version, **headers}
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        async with http.request(method, service.office(), data=body, headers=headers) as response:
            assert response.status == status
            assert (await response.json())["error"]["message"].startswith(why)
        assert not gateway.received


LISTEN = {"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": {"notifications": {}, "_meta": META}}


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_body_that_is_no_message_is_400_and_says_why(version: str) -> None:
    headers = {**HEADERS, "Content-Type": "application/json", "Mcp-Protocol-Version": version}
    headers["Mcp-Method"] = "subscriptions/listen"
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        async with http.post(service.office(), json=INITIALIZE, headers=HEADERS) as response:
            assert response.status == 200  # the office is held
        for body, id_, why in (
            (b"[]", None, "the request is not a JSON object"),
            (b"", None, "jsonrpc: is missing"),
            (json.dumps(PING | {"params": []}).encode(), 7, "params: must be an object"),
            (json.dumps(PING | {"jsonrpc": "1.0"}).encode(), 7, "jsonrpc: must be '2.0'"),
            (json.dumps(PING | {"id": 1.5}).encode(), None, "id: must be a string or a whole number"),
            (b'{"jsonrpc": "2.0", "id": 7, "result": 5}', None, "result: must be an object"),
            # the MCP SDK reads these, and would open streams that do not count as such
            (json.dumps(LISTEN | {"x": math.nan}).encode(), None, "the request is not JSON"),
            (json.dumps(LISTEN | {"x": "\ud83d"}).encode(), None, "x: contains an unpaired surrogate"),
            (json.dumps(PING | {"id": 10**30, "params": []}).encode(), 10**30, "params: must be an object"),
            (json.dumps(PING | {"id": "a" * 257}).encode(), "a" * 257, "id: has more than 256 characters"),
        ):
            async with http.post(service.office(), data=body, headers=headers) as response:
                assert response.status == 400, body
                said = await response.json()
            assert (said["id"], said["error"]["code"]) == (id_, INVALID_REQUEST)
            assert said["error"]["message"].startswith(why)


async def test_a_client_that_names_the_last_event_it_saw_gets_a_stream_of_new_ones() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        async with http.post(service.office(), json=INITIALIZE, headers=HEADERS) as response:
            session = {"Mcp-Session-Id": response.headers["Mcp-Session-Id"], "Last-Event-ID": "1"}
        async with http.get(service.office(), headers={**HEADERS, **session}) as stream:
            assert (stream.status, stream.content_type) == (200, "text/event-stream")


LONG = "".join(f"line {number}\n" for number in range(200))


async def pages_of(client: OfficeClient, uri: str) -> list[str]:
    """The pages of a result that was cut, from a link on."""
    pages = []
    while uri:
        page, *more = (await client.client.read_resource(uri)).contents
        assert isinstance(page, TextResourceContents)
        assert page.uri == uri
        pages.append(page.text)
        uri = more[0].uri if more else ""
    return pages


@ERAS
async def test_each_client_says_in_its_url_where_results_are_cut_and_reads_on_in_them(era: str) -> None:
    async def answer(call: Any) -> Any:
        return {"content": [{"type": "text", "text": LONG}], "structuredContent": {"result": LONG}, "isError": False}

    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        schema = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
        log = {**tool("log"), "return_schema": schema}
        gateway.computers["red"] = [log, {**log, "name": "book", "meta": {"anthropic/maxResultSizeChars": 600}}]
        gateway.answers["client:tool_call"] = answer
        async with office_client(service.office() + "?tools=all&max_chars=300", era) as client:
            assert [each.output_schema for each in (await client.client.list_tools()).tools] == [None, None]
            for name, cut in (("log", 300), ("book", 600)):
                result = await client.client.call_tool(name, {})
                text, link = result.content
                assert (text, result.structured_content) == (TextContent(text=LONG[:cut]), None)
                assert isinstance(link, ResourceLink)
                assert link.name == f"characters 0 to {cut} of {len(LONG)}; read on here"
                pages = await pages_of(client, link.uri)
                assert ("".join(pages), set(map(len, pages[:-1]))) == (LONG[cut:], {300})
                garbled = link.uri.partition("=")[0] + "=x"
                for wrong in ("a2c-result://nothing", garbled):
                    with pytest.raises(MCPError) as refused:
                        await client.client.read_resource(wrong)
                    assert (refused.value.error.code, refused.value.error.data) == (INVALID_PARAMS, {"uri": wrong})
        async with office_client(service.office(), era) as client:
            whole = await client.client.call_tool("log", {})
            assert (whole.content, whole.structured_content) == ([TextContent(text=LONG)], {"result": LONG})


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "", "1.5", "9" * 5000])
async def test_a_wrong_limit_of_results_is_400_and_named(wrong: str) -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        async with http.post(f"{service.office()}?max_chars={wrong}", json=PING, headers=HEADERS) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert error["message"].startswith("max_chars: ")
        assert error["data"] == {"field": "max_chars"}


async def test_an_unknown_query_parameter_is_400_and_named() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        async with http.post(service.office() + "?tool=all", json=PING, headers=HEADERS) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert error["message"] == "tool: is not a known field"
        assert error["data"] == {"field": "tool"}


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_client_of_an_office_without_computers_is_told_so(era: str) -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        async with office_client(service.office("ofice") + "?tools=search", era) as client:
            assert "As you connect, the office has no tools: is a Computer in it" in (client.client.instructions or "")
            assert "is a Computer in it, and is the name of the office right?" in await client.text(
                "search_tools", query="x"
            )
            gateway.computers["red"] = [tool("echo")]
            await gateway.notify("notify:enter_office", office_id="ofice", computer="red")

            async def is_listed() -> bool:
                return "no tools" not in await client.text("search_tools", query="x")

            await eventually(is_listed)
            async with office_client(service.office("ofice"), era) as second:
                assert await second.text("echo") == "echo"
                assert "no tools" not in (second.client.instructions or "no tools")


async def test_mcp_clients_see_the_name_of_the_service() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        async with office_client(service.office()) as client:
            assert client.client.server_info is not None
            assert client.client.server_info.name == "smcp-mcp"


def test_a_maximum_of_no_tools_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        McpSettings(mcp_max_tools=0)
