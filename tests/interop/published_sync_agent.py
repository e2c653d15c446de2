"""The published synchronous Agent, as `published_agent` has the asynchronous one: the same lines in, the same out.

Runs in an environment of its own (`bench.published_env`): URL, office, name, anything to have it connect and join again
when its connection breaks, and a version, to be a release of another protocol. Each question blocks a thread of its
own, as the package's own handlers do.
"""

import json
import os
import queue
import sys
import threading
from typing import Any

import a2c_smcp.agent.sync_client
from a2c_smcp.agent.auth import DefaultAgentAuthProvider
from a2c_smcp.agent.sync_client import SMCPAgentClient
from a2c_smcp.smcp import JOIN_OFFICE_EVENT

from tests.interop.published_lines import NAMESPACE, plain, raised, say, tell


class Application:
    """What the package calls, by the names of its documentation."""

    def on_computer_enter_office(self, data: Any, client: Any) -> None:
        tell("enter", data)

    def on_computer_leave_office(self, data: Any, client: Any) -> None:
        tell("leave", data)

    def on_computer_update_config(self, data: Any, client: Any) -> None:
        tell("update_config", data)

    def on_computer_update_tool_list(self, data: Any, client: Any) -> None:
        tell("update_tool_list", data)

    def on_tools_received(self, computer: str, tools: list[Any], client: Any) -> None:
        tell("tools", {"computer": computer, "tools": sorted(tool["name"] for tool in tools)})

    def on_skills_received(self, computer: str, skills: list[Any], client: Any) -> None:
        tell("skills", {"computer": computer, "skills": sorted(skill["name"] for skill in skills)})


class Agent(SMCPAgentClient):  # type: ignore[misc] # the package is in another environment
    """The package has no callback for a desktop, but this place for one; and it joins without waiting for the answer,
    which comes to `joined`: `[True, None]`, or an error."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.joined: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def emit(self, event: str, data: Any = None, namespace: str | None = None, callback: Any = None) -> None:
        if event == JOIN_OFFICE_EVENT:

            def callback(answer: Any) -> None:
                self.joined.put(answer)

        super().emit(event, data, namespace, callback)

    def process_desktop_response(self, response: Any, computer: str) -> None:
        tell("desktop", {"computer": computer, "desktops": response["desktops"]})


def do(client: Agent, question: dict[str, Any]) -> Any:
    match question["do"]:
        case "put_blob":
            return client.put_blob(question["computer"], question["text"].encode(), name_hint=question["name"])
        case "leave":
            return client.leave_office(question["office"], namespace=NAMESPACE)
        case "transport":
            return client.transport()
        case "disconnect":
            return client.disconnect()
        case "method":
            return getattr(client, question["name"])(*question["args"])
        case event:
            return client.call(event, question["payload"], namespace=NAMESPACE)


def main(url: str, office: str, name: str, tcp: str = "", version: str = "") -> None:
    if version:
        a2c_smcp.agent.sync_client.PROTOCOL_VERSION = version
    client = Agent(
        DefaultAgentAuthProvider(f"id of {name}", office, os.environ.get("TOKEN") or None),
        Application(),
        reconnection=bool(tcp),
    )
    try:
        client.connect_to_server(url)
    except Exception as error:  # noqa: BLE001 -- what the published client raises is what is tested
        say({"answer": raised(error), "id": 0})
        return

    def connected() -> None:
        client.join_office(office, name, namespace=NAMESPACE)
        tell("connected", None)

    def told(event: str, payload: Any = None) -> None:
        tell(event, payload)

    client.on("*", told, namespace=NAMESPACE)
    client.on("connect", connected, namespace=NAMESPACE)
    client.join_office(office, name, namespace=NAMESPACE)
    answer_to_join = client.joined.get()
    say({"answer": "ready" if answer_to_join == [True, None] else answer_to_join, "id": 0})

    def answer(question: dict[str, Any]) -> None:
        try:
            value = plain(do(client, question))
        except Exception as error:  # noqa: BLE001 -- as above
            value = raised(error)
        say({"answer": value, "id": question["id"]})

    for line in sys.stdin:  # the threads end with the process, whatever they wait for
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
    client.disconnect()


if __name__ == "__main__":
    main(*sys.argv[1:])
