"""`smcp-agent prompts` and `smcp-agent prompt get`."""

import json
from typing import Any

from smcp_testing.agent_command import run
from smcp_testing.context_computer import computers_at
from smcp_testing.fake_gateway import fake_gateway

GREET: dict[str, Any] = {
    "name": "greet",
    "description": "Greets.",
    "serverId": "a",
    "arguments": [{"name": "who", "required": True}, {"name": "how"}],
}


async def test_the_prompts_of_all_computers_are_listed_with_their_arguments() -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        made["red"].prompts, made["blue"].prompts = [GREET], [{"name": "sing"}]
        code, out, _ = await run(gateway, "prompts")
        assert code == 0
        assert [word in out.decode() for word in ("greet", "who*", "how", "Greets.", "sing", "blue")] == [True] * 6
        code, out, _ = await run(gateway, "--json", "prompts", "red")
        assert json.loads(out) == {"prompts": [{"computer": "red", **GREET}], "errors": []}


async def test_a_computer_that_cannot_list_prompts_costs_only_its_own() -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        made["red"].prompts = [GREET]
        listing = gateway.answers["client:prompts/list"]

        async def answer(data: dict[str, Any]) -> Any:
            refused = {"code": 403, "message": "not for you", "details": {}}
            return refused if data["computerId"] == "blue" else await listing(data)

        gateway.answers["client:prompts/list"] = answer
        code, out, err = await run(gateway, "prompts")
        assert code == 0
        assert "greet" in out.decode()
        assert "blue: error 403: not for you" in err
        code, _, err = await run(gateway, "prompts", "blue")
        assert code == 1
        assert "error 403: not for you" in err


async def test_a_prompt_is_filled_in_with_its_arguments() -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "red")
        made["red"].prompts = [GREET]
        code, out, _ = await run(gateway, "prompt", "get", "red", "greet", "who=anna", "--server", "a")
        assert (code, out.decode()) == (0, "user:\nred anna\n")
        (asked,) = made["red"].seen("client:prompts/get")
        assert (asked["serverId"], asked["payload"]["params"]["arguments"]) == ("a", {"who": "anna"})
        code, _, err = await run(gateway, "prompt", "get", "red", "greet", "anna")
        assert code == 2
        assert "is not of the form ARGUMENT=VALUE" in err
