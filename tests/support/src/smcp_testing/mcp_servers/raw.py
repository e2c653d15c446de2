"""An MCP server of the 2025 era that answers a call of its tool `say` with the text in its argument, message or not.

    python -m smcp_testing.mcp_servers.raw [--transport stdio|streamable|sse] [--port N] [--plain]

`say(text, big?)`: `$ID` in the text becomes the id of the request, `$BIG` as many `x` as `big` says, and over stdio
`$BYTE` a byte that is not UTF-8; `$LISTS` and `$CALLS` how often the tools were listed and called. Over Streamable HTTP
the text is an event of a stream, with `--plain` it is the body. Over HTTP it prints its URL to standard output.
"""

import argparse
import json
import queue
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

TOOL: Final = {"name": "say", "inputSchema": {"type": "object"}}
NO_METHOD: Final = -32601
ASKED: Final = Counter[str]()
"""How often, by method."""


def answer(message: dict[str, Any]) -> str | None:
    """The text that answers a message; None: nothing does."""
    if "id" not in message:
        return None
    params = message.get("params") or {}
    result: dict[str, Any] = {}
    ASKED[message["method"]] += 1
    match message["method"]:
        case "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "1"},
            }
        case "tools/list":
            result = {"tools": [TOOL]}
        case "tools/call":
            asked = params["arguments"]
            text: str = asked["text"]
            text = text.replace("$LISTS", str(ASKED["tools/list"])).replace("$CALLS", str(ASKED["tools/call"]))
            return text.replace("$ID", str(message["id"])).replace("$BIG", "x" * asked.get("big", 0))
        case "ping":
            pass
        case _:
            error = {"code": NO_METHOD, "message": "no such method"}
            return json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error})
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})


class Door(BaseHTTPRequestHandler):
    """One request over HTTP."""

    plain = False
    events: "queue.Queue[str]" = queue.Queue()
    """Of the last stream that was opened."""

    def do_POST(self) -> None:
        text = answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if text is None or self.path == "/messages":
            if text is not None:
                self.events.put(text)
            self._say(202, "text/plain", b"")
        elif self.plain:
            self._say(200, "application/json", text.encode())
        else:
            self._say(200, "text/event-stream", _event("message", text))

    def do_GET(self) -> None:
        if self.path != "/sse":
            self._say(405, "text/plain", b"")
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        events: queue.Queue[str] = queue.Queue()
        Door.events = events
        try:
            self.wfile.write(_event("endpoint", "/messages"))
            while True:
                self.wfile.write(_event("message", events.get()))
        except ConnectionError:
            pass  # who listened has gone

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def _say(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()


def serve_http(path: str, port: int) -> None:
    """Serve on 127.0.0.1; port 0 takes a free one. Prints the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Door)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}/{path}", flush=True)  # noqa: T201 -- the parent reads it
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "streamable", "sse"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    if options.transport == "stdio":
        for line in sys.stdin:
            if (text := answer(json.loads(line))) is not None:
                sys.stdout.buffer.write(text.encode().replace(b"$BYTE", b"\xff") + b"\n")
                sys.stdout.buffer.flush()
        return
    Door.plain = options.plain
    serve_http("mcp" if options.transport == "streamable" else "sse", options.port)


if __name__ == "__main__":
    main()
