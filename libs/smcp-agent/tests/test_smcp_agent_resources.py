from base64 import b64encode
from typing import Any

import pytest

from smcp_agent import (
    McpError,
    NotFound,
    RateLimited,
    SmcpError,
    TimedOut,
    TooLarge,
    Unavailable,
)
from smcp_agent.errors import BadReply, ErrorCode, Malformed
from smcp_testing.context_computer import SERVER
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.file_computer import FILE, at

JsonObject = dict[str, Any]
READ = "client:resources/read"
LIST = "client:resources/list"


@pytest.mark.rule("computer.resources.agent.read")
async def test_a_resource_request_has_the_envelope_of_the_protocol() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            assert await agent.read_resource("red", FILE) == "notes"
            await agent.read_resource(computer="red", uri=FILE, server=SERVER)
            first, second = red.seen(READ)
            payload = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": FILE}}
            envelope = {"roomId": "office", "computerId": "red", "agent": "bot", "payload": payload}
            assert {name: value for name, value in first.items() if name != "req_id"} == envelope
            assert second["serverId"] == SERVER
            assert first["req_id"] != second["req_id"]


@pytest.mark.rule("computer.resources.agent.read")
async def test_contents_are_returned_by_their_type() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        red.shelf.put("file:///p.png", contents=[{"uri": "file:///p.png", "blob": b64encode(b"\x89\x00").decode()}])
        async with agent:
            assert await agent.read_resource("red", "file:///p.png") == b"\x89\x00"
            page = await agent.read_resource("red", f"dpe://{red.shelf.host}/doc/pages/1")
            assert [element["element_id"] for element in page["elements"]] == ["tbl-001"]
            contents = await agent.read_contents("red", f"dpe://{red.shelf.host}/doc")
            assert contents.json()["page_count"] == 2
            assert contents.contents[0].mime_type == "application/json"


@pytest.mark.rule("computer.resources.agent.list", "computer.resources.models.page.example")
async def test_pages_of_resources_follow_each_other_by_their_cursor() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        red.page_size = 3
        async with agent:
            first = await agent.list_resources("red")
            assert [each["uri"] for each in first["resources"]] == ["file:///0", "file:///1", "file:///2"]
            second = await agent.list_resources("red", server=SERVER, cursor=first["nextCursor"])
            assert [each["name"] for each in second["resources"]] == ["3", "4", "notes.txt"]
            listed = [each["uri"] async for each in agent.iter_resources("red")]
            assert listed == [each["uri"] for each in red.shelf.listed()]
            assert [data["payload"]["params"] for data in red.seen(LIST)[-3:]] == [{}, {"cursor": "3"}, {"cursor": "6"}]
            assert (await agent.list_resources())["computer"] == "red"
            assert "computerId" not in red.seen(LIST)[-1]


async def test_a_repeated_cursor_ends_the_list_with_an_error() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)

        async def endless(data: JsonObject) -> Any:
            other = {None: "a", "a": "b", "b": "a"}[data["payload"]["params"].get("cursor")]
            return red._reply(data, result={"resources": [], "nextCursor": other})

        gateway.answers[LIST] = endless
        async with agent:
            with pytest.raises(BadReply, match="does not end"):
                await agent.resources("red")


@pytest.mark.parametrize(("items", "size"), [(0, 0), (1000, 0), (1, 1024 * 1024)])
async def test_a_list_without_end_is_too_large(items: int, size: int) -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        listing = gateway.answers[LIST]
        listed = [{"uri": "file:///x", "name": "x" * size}] * items

        async def endless(data: JsonObject) -> Any:
            cursor = int(data["payload"]["params"].get("cursor", 0)) + 1
            return red._reply(data, result={"resources": listed, "nextCursor": str(cursor)})

        gateway.answers[LIST] = endless
        async with agent:
            with pytest.raises(TooLarge):
                await agent.resources("red")
            gateway.answers[LIST] = listing
            assert await agent.resources("red"), "what was read of it counts no longer"


async def test_malformed_items_are_left_out_and_a_malformed_page_is_a_bad_reply() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        good = {"uri": FILE, "name": "notes", "_meta": {"x": 1}, "later": True}
        results: list[JsonObject] = [
            {"resources": [None, 7, {"name": "no uri"}, {"uri": 8}, good], "nextCursor": None},
            {"resources": {}},
            {"resources": [], "nextCursor": 5},
        ]
        wrong = ["resources", "nextCursor"]

        async def answer(data: JsonObject) -> Any:
            return red._reply(data, result=results.pop(0))

        gateway.answers[LIST] = answer
        async with agent:
            assert await agent.list_resources("red") == {"resources": [good], "computer": "red"}
            while results:
                with pytest.raises(BadReply) as refused:
                    await agent.list_resources("red")
                said = "the list of resources that MCP server 'files' of Computer 'red' sent is malformed"
                assert refused.value.message.startswith(f"{said}: {wrong[0]}: ")
                assert refused.value.details["field"] == wrong.pop(0)


@pytest.mark.rule("finder.completion.agent", "computer.resources.agent.templates")
async def test_templates_are_listed_and_completed() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        red.page_size = 1
        async with agent:
            page = await agent.list_resource_templates("red")
            assert [each["name"] for each in page["resourceTemplates"]] == ["page"]
            templates = [each["uriTemplate"] async for each in agent.iter_resource_templates("red", server=SERVER)]
            assert len(templates) == 2
            assert (await agent.complete("red", templates[0], "doc_ref", "d"))["values"] == ["doc"]
            completed = await agent.complete("red", templates[1], "element_id", "t", chosen={"doc_ref": "doc"})
            assert completed == {"values": ["txt-001", "tbl-001"], "total": 2, "hasMore": False}
            asked = red.seen("client:completion/complete")[-1]["payload"]["params"]
            assert asked == {
                "ref": {"type": "ref/resource", "uri": templates[1]},
                "argument": {"name": "element_id", "value": "t"},
                "context": {"arguments": {"doc_ref": "doc"}},
            }


@pytest.mark.rule("computer.resources.agent.errors")
async def test_a_refusal_of_an_mcp_server_is_an_error_with_its_details() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            with pytest.raises(McpError) as refused:
                await agent.read_resource("red", "file:///gone")
            error = refused.value
            said = {"uri": "file:///gone", "smcp_code": "SMCP_RESOURCE_NOT_FOUND"}
            assert (error.rpc_code, error.message, error.data) == (-32002, "Resource not found", said)
            assert (error.smcp_code, error.code) == ("SMCP_RESOURCE_NOT_FOUND", ErrorCode.NOT_FOUND)
            assert error.details == {"rpc_code": -32002, "data": said, "smcp_code": "SMCP_RESOURCE_NOT_FOUND"}
            red.refusal = {"code": -32603, "message": "no"}
            with pytest.raises(McpError) as refused:
                await agent.subscribe_resource("red", FILE)
            error = refused.value
            assert (error.rpc_code, error.data, error.smcp_code, error.code) == (-32603, None, None, ErrorCode.INTERNAL)
            assert agent.subscriptions() == ()


@pytest.mark.rule("computer.resources.agent.errors")
@pytest.mark.parametrize(
    ("code", "kind"), [(404, NotFound), (408, TimedOut), (413, TooLarge), (429, RateLimited), (503, Unavailable)]
)
async def test_a_request_that_reaches_no_mcp_server_is_an_error_by_its_code(code: int, kind: type[SmcpError]) -> None:
    async with fake_gateway() as gateway:
        agent, _ = at(gateway)
        details = {"smcp_code": "SMCP_RATE_LIMITED", "retry_after_s": 1.5}

        async def refuse(data: JsonObject) -> Any:
            return {"code": code, "message": "why", "details": details}

        gateway.answers |= dict.fromkeys((READ, LIST, "client:get_finder"), refuse)
        async with agent:
            for ask in (agent.read_resource("red", FILE), agent.list_resources(), agent.get_finder("red")):
                with pytest.raises(kind) as refused:
                    await ask
                assert (refused.value.code, refused.value.message) == (code, "why")
                assert (refused.value.details, refused.value.smcp_code) == (details, "SMCP_RATE_LIMITED")


async def test_a_reply_that_is_no_envelope_is_a_bad_reply() -> None:
    async with fake_gateway() as gateway:
        agent, _ = at(gateway)
        replies: list[JsonObject] = [
            {"payload": {}},
            {"roomId": "office", "payload": {"jsonrpc": "2.0", "id": 1}},
            {"roomId": "office", "payload": {"jsonrpc": "2.0", "id": 1, "result": {"contents": 1}}},
            {},
        ]

        async def answer(data: JsonObject) -> Any:
            return replies[0]

        gateway.answers[READ] = answer
        async with agent:
            while replies:
                with pytest.raises(BadReply):
                    await agent.read_resource("red", FILE)
                replies.pop(0)


async def test_the_error_for_a_malformed_reply_names_sender_and_field() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)

        async def answer(data: JsonObject) -> Any:
            return red._reply(data, result={"contents": [{"uri": FILE, "text": 1}], "completion": {"values": "a"}})

        async def no_list(data: JsonObject) -> Any:
            return {"desktops": "none", "req_id": data["req_id"]}

        gateway.answers |= {READ: answer, "client:completion/complete": answer, "client:get_desktop": no_list}
        desktop = "the answer of Computer 'red' to client:get_desktop is malformed: desktops: "
        sent = "that MCP server 'files' of Computer 'red' sent is malformed"
        async with agent:
            for ask, said in (
                (agent.read_resource("red", FILE), f"the content of {FILE} {sent}: contents.0.text: "),
                (agent.complete("red", "t", "doc_ref"), f"the completion of 'doc_ref' {sent}: completion.values: "),
                (agent.get_desktop("red"), desktop),
            ):
                with pytest.raises(BadReply) as refused:
                    await ask
                assert refused.value.message.startswith(said)
                assert refused.value.details["field"] in said


async def test_a_malformed_argument_is_refused_by_its_field() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            for ask, field in (
                (agent.read_resource("red", ""), "payload.params.uri"),
                (agent.read_resource("red", "x" * 9000), "payload.params.uri"),
                (agent.read_resource("", FILE), "computerId"),
                (agent.list_resources("red", cursor=5), "payload.params.cursor"),  # type: ignore[arg-type]  # tested
                (agent.read_resource("red", FILE, server="\x00"), "serverId"),
                (agent.get_finder("red", limit=101), "limit"),
                (agent.complete("red", "t", "doc_ref", chosen=["x"]), "chosen"),  # type: ignore[arg-type]  # tested
                (
                    agent.complete("red", "t", "doc_ref", chosen={"x": 1}),  # type: ignore[dict-item]  # tested
                    "payload.params.context.arguments.x",
                ),
                (agent.finder("red", keywords=[[]]), "keywords.0"),  # type: ignore[list-item]  # tested
                (agent.finder("red", keywords=["\ud800"]), "keywords.0"),
            ):
                with pytest.raises(Malformed) as refused:
                    await ask
                assert refused.value.details["field"] == field
            assert red.asked == []


GREET = {"name": "greet", "arguments": [{"name": "who", "required": True}], "serverId": "a"}


async def test_prompts_are_listed_page_by_page_filled_in_and_completed() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        red.prompts, red.page_size = [GREET, {"name": "part"}, {"title": "no name"}], 1
        async with agent:
            assert [each async for each in agent.iter_prompts("red")] == [GREET, {"name": "part"}]
            assert [each async for each in agent.iter_prompts("red", server="a")] == [GREET, {"name": "part"}]
            got = await agent.get_prompt("red", "greet", {"who": "anna"}, server="a")
            assert got["messages"] == [{"role": "user", "content": {"type": "text", "text": "red anna"}}]
            assert got["meta"] == {"from": "a"}
            assert (await agent.complete_prompt("red", "greet", "who", "a"))["values"] == ["greetred"]
            params = [each["payload"]["params"] for each in red.seen("client:prompts/get")]
            assert params == [{"name": "greet", "arguments": {"who": "anna"}}]


async def test_a_prompt_that_is_refused_or_malformed_is_an_error() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            with pytest.raises(McpError, match="Unknown prompt"):
                await agent.get_prompt("red", "greet")
            for arguments, field in [({"who": 1}, "payload.params.arguments.who"), (["x"], "arguments")]:
                with pytest.raises(SmcpError) as refused:
                    await agent.get_prompt("red", "greet", arguments)  # type: ignore[arg-type]  # tested
                assert refused.value.details["field"] == field

            async def answer(data: dict[str, object]) -> object:
                return red._reply(data, result={"messages": [{"role": "user"}]})

            gateway.answers["client:prompts/get"] = answer
            with pytest.raises(BadReply, match=r"messages\.0\.content"):
                await agent.get_prompt("red", "greet")
