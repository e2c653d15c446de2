"""Notes of an MCP server to which Agents subscribe at a native Computer."""

import json
from typing import Any

from smcp_computer.computer import Computer
from smcp_testing.computer_office import NAME, OFFICE
from smcp_testing.gateway_world import Client
from smcp_testing.waiting import eventually

NOTES: list[dict[str, Any]] = [
    {"uri": "note://1", "resource": {"title": "One"}},
    {"uri": "note://2"},
    {"uri": "note://end"},
]


async def tell(here: Computer, tool: str, **arguments: Any) -> Any:
    """What a tool of the context server `one` gives."""
    result = await here.fleet.supervisors["one"].calls.run(tool, arguments, timeout=30)
    assert not result.get("isError"), result
    return json.loads(result["content"][0]["text"])


async def asked(client: Client, verb: str, uri: str, **more: Any) -> Any:
    payload = {"jsonrpc": "2.0", "id": 1, "method": f"resources/{verb}", "params": {"uri": uri}}
    envelope = {"roomId": OFFICE, "computerId": NAME, "agent": "anna", "payload": payload, **more}
    answer = await client.call(f"client:resources/{verb}", envelope, timeout=30)
    assert answer.get("payload", {}).get("result") == {}, answer
    return answer


def updated(client: Client) -> list[str]:
    return [told["payload"]["params"]["uri"] for told in client.told("notify:resources/updated")]


async def downstream(here: Computer, *uris: str) -> None:
    """Wait until the server has exactly these subscriptions."""

    async def subscribed() -> bool:
        return bool(await tell(here, "subscribed") == list(uris))

    await eventually(subscribed, timeout=30)
