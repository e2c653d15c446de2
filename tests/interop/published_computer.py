"""The published Computer: joins, says `ready`, does what stands in the lines that it reads, until there are no more.

Runs in an environment of its own (`bench.published_env`): URL, office, name, the MCP server and its argument.
"""

import asyncio
import sys

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.mcp_clients.model import StdioServerConfig
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from mcp import StdioServerParameters


def say(word: str) -> None:
    sys.stdout.write(f"\n{word}\n")  # the package logs to standard output
    sys.stdout.flush()


async def main(url: str, office: str, name: str, server: str, journal: str) -> None:
    parameters = StdioServerParameters(command=sys.executable, args=[server, journal])
    config = StdioServerConfig(
        name="tools", server_parameters=parameters, forbidden_tools=["blow_up"] if name == "strict" else []
    )
    async with Computer(name, mcp_servers={config}, confirm_callback=lambda *_: True) as computer:
        client = SMCPComputerClient(computer=computer, reconnection=False)
        await client.connect(url, namespaces=["/smcp"])
        await client.join_office(office)
        say("ready")
        loop = asyncio.get_running_loop()
        while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            match line:
                case ["update", what]:
                    await client.emit(f"server:update_{what}", {"computer": name})
                case ["switch", other]:
                    await client.join_office(other)
            say("done")
        await client.disconnect()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
