"""`client:prompts/list` and `client:prompts/get` of a native Computer with real servers of MCP 2025 and 2026."""

from typing import Any, Literal

import pytest

from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent


def text(answer: dict[str, Any]) -> tuple[str, str]:
    (message,) = answer["payload"]["result"]["messages"]
    return answer["serverId"], message["content"]["text"]


@pytest.mark.rule("answers.prompts.list", "answers.prompts.get", "answers.prompts.complete")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_prompts_are_listed_and_filled_in(nats_url: str, era: Literal["2025", "2026"]) -> None:
    servers = {
        "a": configs.context(era, name="first", prompts=["greet", "part"]),
        "b": configs.context(era, name="second", prompts=["greet"]),
        "none": configs.context(era),
    }
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        listed = await alice.result("prompts/list")
        assert [(each["serverId"], each["name"], each["title"]) for each in listed["prompts"]] == [
            ("a", "greet", "Greet"),
            ("a", "part", "Part"),
            ("b", "greet", "Greet"),
        ]
        assert listed["prompts"][0]["arguments"] == [{"name": "who", "required": True}]
        assert [each["name"] for each in (await alice.result("prompts/list", server="b"))["prompts"]] == ["greet"]
        anna: Any = {"arguments": {"who": "anna"}}
        assert text(await alice.ask("prompts/get", name="greet", **anna)) == ("a", "first: greet anna")
        assert text(await alice.ask("prompts/get", name="greet", server="b", **anna)) == ("b", "second: greet anna")
        await here.call("b__reads", req_id="used")
        answer = await alice.ask("prompts/get", name="greet", **anna)
        assert text(answer) == ("b", "second: greet anna"), "the server that was used last"
        meta = answer["payload"]["result"]["meta"]
        assert (meta["later"], "a2c_timeout" in meta) == (1, False), "a2c_… is the Computer's to say"
        reference: Any = {"ref": {"type": "ref/prompt", "name": "part"}, "argument": {"name": "who", "value": "h"}}
        completed = await alice.ask("completion/complete", **reference)
        assert (completed["serverId"], completed["payload"]["result"]["completion"]["values"]) == ("a", ["hanna"])


@pytest.mark.rule("answers.prompts.get", "answers.prompts.errors")
async def test_a_prompt_that_cannot_be_had_is_refused_in_words(nats_url: str) -> None:
    servers = {"a": configs.context("2026", prompts=["greet"]), "none": configs.context("2025")}
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        nowhere = await alice.ask("prompts/get", name="nowhere")
        assert (nowhere["code"], "'nowhere'" in nowhere["message"]) == (404, True)
        assert (await alice.flat("prompts/get", name="greet", server="nobody"))[0] == 404
        assert await alice.flat("prompts/list", server="none") == (400, "SMCP_RESOURCE_NOT_SUPPORTED")
        refused = await alice.error("prompts/get", name="unlisted", server="a")
        assert (refused["code"], refused["message"]) == (-32602, "unlisted is not a prompt")
        missing = await alice.error("prompts/get", name="greet", server="a")
        assert missing["message"] == "the MCP server 'a' failed", "its text may be that of an exception"
        wrong: list[tuple[str, Any, str]] = [
            ("prompts/get", {"name": "greet", "arguments": {"who": 1}}, "payload.params.arguments.who"),
            ("prompts/get", {}, "payload.params.name"),
            ("prompts/list", {"cursor": "x"}, "payload.params.cursor"),
        ]
        for method, params, field in wrong:
            answer = await alice.ask(method, **params)
            assert (answer.get("code"), answer.get("details", {}).get("field")) == (400, field)


@pytest.mark.rule("answers.prompts.list")
async def test_the_prompts_of_a_server_that_does_not_answer_are_missing_from_a_list(nats_url: str) -> None:
    broken = {"type": "stdio", "server_parameters": {"command": "/nowhere", "args": [], "env": None}}
    servers = {"a": configs.context("2026", prompts=[f"p{number:03}" for number in range(101)]), "broken": broken}
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        page = await alice.result("prompts/list")
        assert (len(page["prompts"]), page["meta"]) == (100, {"a2c_skipped_servers": ["broken"]})
        rest = await alice.result("prompts/list", cursor=page["nextCursor"])
        assert [each["name"] for each in rest["prompts"]] == ["p100"]
        assert "nextCursor" not in rest
