"""The published Agent: joins, then answers each line of JSON with one, and tells what it is notified of.

Runs in an environment of its own (`bench.published_env`): URL, office, name.
"""

import asyncio
import json
import sys
from typing import Any

from a2c_smcp.agent.auth import DefaultAgentAuthProvider
from a2c_smcp.agent.client import AsyncSMCPAgentClient

MARK = "@ "
"""Begins a line of ours: the package logs to standard output."""


def say(value: Any) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(value)}\n")
    sys.stdout.flush()


async def do(client: AsyncSMCPAgentClient, office: str, question: dict[str, Any]) -> Any:
    match question["do"]:
        case "list":
            return await client.get_computers_in_office(office)
        case "tools":
            return await client.get_tools_from_computer(question["computer"])
        case "config":
            return await client.get_config_from_computer(question["computer"])
        case "call":
            result = await client.emit_tool_call(
                question["computer"], question["tool"], question["params"], question["timeout"]
            )
            return result.model_dump(mode="json")
        case event:
            return await client.call(event, question["payload"], namespace="/smcp")


async def main(url: str, office: str, name: str) -> None:
    client = AsyncSMCPAgentClient(DefaultAgentAuthProvider(name, office), reconnection=False)
    await client.connect_to_server(url)

    async def told(event: str, payload: Any = None) -> None:
        say({"told": event, "payload": payload})

    client.on("*", told, namespace="/smcp")
    await client.join_office(office, name, namespace="/smcp")
    say({"answer": "ready", "id": 0})
    loop = asyncio.get_running_loop()
    tasks = set()

    async def answer(question: dict[str, Any]) -> None:
        try:
            value = await do(client, office, question)
        except Exception as error:  # noqa: BLE001 -- what the published client raises is what is tested
            value = {"raised": type(error).__name__, "text": str(error)}
        say({"answer": value, "id": question["id"]})

    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await client.disconnect()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
