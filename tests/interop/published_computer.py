"""The published Computer: joins, says `ready`, does what stands in the lines that it reads, until there are no more.

Runs in an environment of its own (`bench.published_env`): URL, office, name, the command of the MCP server (JSON), a
file with settings, and options of its TCP connections (JSON). With such options it connects again when its connection
breaks, and joins again, as its application has to.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import aiohttp
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.mcp_clients.model import StdioServerConfig
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from mcp import StdioServerParameters


def say(word: str) -> None:
    sys.stdout.write(f"\n{word}\n")  # the package logs to standard output
    sys.stdout.flush()


async def main(url: str, office: str, name: str, server: str, settings: str, tcp: str = "") -> None:
    program, *arguments = json.loads(server)
    parameters = StdioServerParameters(command=program, args=arguments)
    config = StdioServerConfig(name="tools", server_parameters=parameters, forbidden_tools=["blow_up"])
    http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(**json.loads(tcp))) if tcp else None
    tasks = set()
    async with Computer(
        name, mcp_servers={config}, confirm_callback=lambda *_: True, flag_settings_path=Path(settings)
    ) as computer:
        client = SMCPComputerClient(computer=computer, reconnection=http is not None, http_session=http)
        auth = {"token": os.environ["TOKEN"]} if os.environ.get("TOKEN") else None
        await client.connect(url, namespaces=["/smcp"], wait_timeout=15, auth=auth)

        async def connected() -> None:  # must not wait here for an answer: nothing is read meanwhile
            task = asyncio.create_task(client.join_office(office))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        client.on("connect", connected, namespace="/smcp")
        await client.join_office(office)
        say("ready")
        loop = asyncio.get_running_loop()
        while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            match line:
                case ["update", what]:
                    await client.emit(f"server:update_{what}", {"computer": name})
                case ["switch", other]:
                    try:
                        await client.join_office(other)
                    except RuntimeError as error:
                        say(f"refused: {error}")
                case ["leave", left]:
                    await client.leave_office(left)
            say("done")
        await client.disconnect()
        os._exit(0)  # closing its MCP servers can take the package longer than a test wants to wait


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
