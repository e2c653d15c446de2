"""An MCP server over stdio with one tool, as cheap as it can be: 25 of them share the machine with all that is tested.

    python tool_server.py FILE

`work` appends its `id` and the moment (monotonic seconds) to FILE, takes `seconds`, and gives the `id` back.
"""

import asyncio
import json
import sys
from typing import Any

from tests.e2e.restarts.runs import note

TOOL = {
    "name": "work",
    "inputSchema": {
        "type": "object",
        "properties": {"id": {"type": "string"}, "seconds": {"type": "number"}},
        "required": ["id", "seconds"],
    },
}


class Server:
    def __init__(self, runs: str) -> None:
        self._runs = runs
        self._working: dict[Any, asyncio.TimerHandle] = {}

    def take(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "initialize", "id": number, "params": params}:
                info = {"name": "work", "version": "1"}
                version = params["protocolVersion"]
                self._say(number, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
            case {"method": "tools/list", "id": number}:
                self._say(number, {"tools": [TOOL]})
            case {"method": "tools/call", "id": number, "params": {"name": "work", "arguments": arguments}}:
                note(self._runs, arguments["id"], arguments["seconds"])
                result = {"content": [{"type": "text", "text": arguments["id"]}]}
                loop = asyncio.get_running_loop()
                self._working[number] = loop.call_later(arguments["seconds"], self._done, number, result)
            case {"method": "notifications/cancelled", "params": {"requestId": number}}:
                if working := self._working.pop(number, None):
                    working.cancel()
            case {"method": "ping", "id": number}:
                self._say(number, {})
            case {"method": method, "id": number}:
                error = {"code": -32601, "message": f"no such method: {method}"}
                _write({"jsonrpc": "2.0", "id": number, "error": error})

    def _done(self, number: Any, result: dict[str, Any]) -> None:
        del self._working[number]
        self._say(number, result)

    def _say(self, number: Any, result: dict[str, Any]) -> None:
        _write({"jsonrpc": "2.0", "id": number, "result": result})


def _write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def main(runs: str) -> None:
    server, reader = Server(runs), asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        server.take(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
