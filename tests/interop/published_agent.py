"""The published Agent: joins, then answers each line of JSON with one, and prints the notifications to its application.

Runs in an environment of its own (`bench.published_env`): URL, office, name, options of its TCP connections (JSON), and
a version, to be a release of another protocol. With such options it connects again when its connection breaks, and
joins again, as its application has to. The id under which it sends requests is not the name under which it joins.
"""

import asyncio
import json
import os
import sys
from typing import Any

import a2c_smcp.agent.client
import aiohttp
from a2c_smcp.agent.auth import DefaultAgentAuthProvider
from a2c_smcp.agent.client import AsyncSMCPAgentClient
from a2c_smcp.smcp import JOIN_OFFICE_EVENT

from tests.interop.published_lines import NAMESPACE, plain, raised, say, tell


class Application:
    """What the package calls, by the names of its documentation."""

    async def on_computer_enter_office(self, data: Any, client: Any) -> None:
        tell("enter", data)

    async def on_computer_leave_office(self, data: Any, client: Any) -> None:
        tell("leave", data)

    async def on_computer_update_config(self, data: Any, client: Any) -> None:
        tell("update_config", data)

    async def on_computer_update_tool_list(self, data: Any, client: Any) -> None:
        tell("update_tool_list", data)

    async def on_tools_received(self, computer: str, tools: list[Any], client: Any) -> None:
        tell("tools", {"computer": computer, "tools": sorted(tool["name"] for tool in tools)})

    async def on_skills_received(self, computer: str, skills: list[Any], client: Any) -> None:
        tell("skills", {"computer": computer, "skills": sorted(skill["name"] for skill in skills)})


class Agent(AsyncSMCPAgentClient):  # type: ignore[misc] # the package is in another environment
    """The package has no callback for a desktop, but this place for one; and it joins without waiting for the answer,
    which comes to `joined`: `[True, None]`, or an error."""

    joined: asyncio.Future[Any]

    async def emit(self, event: str, data: Any = None, namespace: str | None = None, callback: Any = None) -> None:
        if event == JOIN_OFFICE_EVENT:
            joined = self.joined = asyncio.get_running_loop().create_future()

            def callback(answer: Any) -> None:
                joined.set_result(answer)

        await super().emit(event, data, namespace, callback)

    def process_desktop_response(self, response: Any, computer: str) -> None:
        tell("desktop", {"computer": computer, "desktops": response["desktops"]})


async def do(client: Agent, question: dict[str, Any]) -> Any:
    match question["do"]:
        case "put_blob":
            return await client.put_blob(question["computer"], question["text"].encode(), name_hint=question["name"])
        case "leave":
            return await client.leave_office(question["office"], namespace=NAMESPACE)
        case "transport":
            return client.transport()
        case "disconnect":
            return await client.disconnect()
        case "method":
            return await getattr(client, question["name"])(*question["args"])
        case event:
            return await client.call(event, question["payload"], namespace=NAMESPACE)


async def main(url: str, office: str, name: str, tcp: str = "", version: str = "") -> None:
    if version:
        a2c_smcp.agent.client.PROTOCOL_VERSION = version
    http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(**json.loads(tcp))) if tcp else None
    client = Agent(
        DefaultAgentAuthProvider(f"id of {name}", office, os.environ.get("TOKEN") or None),
        Application(),
        reconnection=http is not None,
        http_session=http,
    )
    try:
        await client.connect_to_server(url)
    except Exception as error:  # noqa: BLE001 -- what the published client raises is what is tested
        say({"answer": raised(error), "id": 0})
        if http is not None:
            await http.close()
        return

    async def told(event: str, payload: Any = None) -> None:
        tell(event, payload)

    async def connected() -> None:
        await client.join_office(office, name, namespace=NAMESPACE)
        tell("connected", None)

    client.on("*", told, namespace=NAMESPACE)
    client.on("connect", connected, namespace=NAMESPACE)
    await client.join_office(office, name, namespace=NAMESPACE)
    answer_to_join = await client.joined
    say({"answer": "ready" if answer_to_join == [True, None] else answer_to_join, "id": 0})
    loop = asyncio.get_running_loop()
    tasks = set()

    async def answer(question: dict[str, Any]) -> None:
        try:
            value = plain(await do(client, question))
        except Exception as error:  # noqa: BLE001 -- as above
            value = raised(error)
        say({"answer": value, "id": question["id"]})

    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await client.disconnect()
    if http is not None:
        await http.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
