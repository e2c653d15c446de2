"""An MCP server over stdio of the 2025 era whose caller chooses its answers.

    python -m smcp_testing.mcp_servers.scripted [--answers FILE]

Its tool `script(method, text, hold?)` keeps a text for the next request of that method. That request is answered by the
text, with `$ID` replaced by its id, and then by an error, so nobody waits if the text is not an answer. If the method
is one of `LISTS`, its list is announced as changed. A call with `hold` is answered with the next one. FILE has texts
for the first requests, as JSON: {method: text}. Other requests get a plain result, or an error.
"""

import json
import sys
from collections import defaultdict, deque
from pathlib import Path
from typing import Any, Final

LISTS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""The methods whose result is a list, and its field."""
TOOLS: Final = [{"name": "script", "inputSchema": {"type": "object"}}]
CAPABILITIES: Final = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
}
REFUSED: Final = {"code": -32602, "message": "refused"}


class Server:
    def __init__(self, answers: dict[str, str]) -> None:
        self._kept: defaultdict[str, deque[str]] = defaultdict(deque)
        self._held: list[Any] = []
        for method, text in answers.items():
            self._kept[method].append(text)

    def answer(self, message: dict[str, Any]) -> None:
        request = message.get("id")
        method, params = message.get("method", ""), message.get("params") or {}
        if request is None:
            return
        if kept := self._kept[method]:
            self.write(kept.popleft().replace("$ID", str(request)))
            self.send(id=request, error=REFUSED)
        elif method == "initialize":
            about = {"name": "scripted", "version": "1"}
            version = params["protocolVersion"]
            self.send(
                id=request, result={"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": about}
            )
        elif method == "tools/call":
            self._held.append(request)
            self._script(**params["arguments"])
        elif method in LISTS:
            self.send(id=request, result={LISTS[method]: TOOLS if method == "tools/list" else []})
        elif method in ("ping", "resources/subscribe", "resources/unsubscribe"):
            self.send(id=request, result={})
        else:
            self.send(id=request, error=REFUSED)

    def _script(self, method: str, text: str, *, hold: bool = False) -> None:
        self._kept[method].append(text)
        if method in LISTS:
            self.send(method=f"notifications/{method.partition('/')[0]}/list_changed")
        while self._held and not hold:
            self.send(id=self._held.pop(0), result={"content": []})

    def send(self, **fields: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **fields}))

    def write(self, line: str) -> None:
        sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    server = Server(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")) if len(sys.argv) > 2 else {})
    for line in sys.stdin:
        server.answer(json.loads(line))


if __name__ == "__main__":
    main()
