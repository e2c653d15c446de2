"""Computers that echo, in a process of their own: on NATS for the gateway, on Socket.IO for the published server.

`SMCP_TOKEN`: the token of those on Socket.IO; none without it.
"""

import argparse
import asyncio
import os
import sys
from typing import Any, Final

import orjson
import socketio
import uvloop

from bench.load import Json
from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.subjects import OWNER_QUEUE, client_all, verb_of

ECHO: Final = {"name": "echo", "description": "", "params_schema": {}}


def result_of(params: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": params["text"]}], "isError": False}


async def answer(incoming: Incoming) -> Reply:
    if verb_of(incoming.subject) == "pending":  # a call that took long is asked after
        return Reply(b'{"unknown":[]}')
    return Reply(orjson.dumps(result_of(orjson.loads(incoming.body)["params"])))


async def on_nats(url: str, offices: int) -> None:
    async with open_bus(BusConfig(url=url, name="bench-computers")) as bus:
        for index in range(offices):
            await bus.serve(client_all(f"office-{index}", f"pc-office-{index}"), answer, queue=OWNER_QUEUE)
        await until_told_to_stop()


async def on_socketio(url: str, offices: int, token: str | None = None) -> None:
    clients = []
    for index in range(offices):
        client = socketio.AsyncClient(json=Json, reconnection=False)

        async def tool_call(data: dict[str, Any]) -> dict[str, Any]:
            return result_of(data["params"])

        async def get_tools(data: dict[str, Any]) -> dict[str, Any]:
            return {"tools": [ECHO], "req_id": data["req_id"]}

        client.on("client:tool_call", tool_call, namespace="/smcp")
        client.on("client:get_tools", get_tools, namespace="/smcp")
        auth = None if token is None else {"token": token}
        await client.connect(url, namespaces=["/smcp"], transports=["websocket"], auth=auth)
        joined = await client.call(
            "server:join_office",
            {"role": "computer", "name": f"pc-office-{index}", "office_id": f"office-{index}"},
            namespace="/smcp",
        )
        if not joined[0]:
            raise SystemExit(f"join refused: {joined[1]}")
        clients.append(client)
    await until_told_to_stop()
    for client in clients:
        await client.disconnect()


async def until_told_to_stop() -> None:
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--on", choices=["nats", "socketio"], required=True)
    parser.add_argument("--offices", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.on == "nats":
        uvloop.run(on_nats(arguments.url, arguments.offices))
    else:
        uvloop.run(on_socketio(arguments.url, arguments.offices, os.environ.get("SMCP_TOKEN")))
