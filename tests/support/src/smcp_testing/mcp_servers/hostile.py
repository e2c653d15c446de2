"""An MCP server over stdio that behaves as badly as it is told. It imports next to nothing, so that it starts fast.

    python -I -S hostile.py [--dies WHERE] [--hangs WHERE [--for S]] [--after N] [--garbage] [--huge WHERE] [--tools N]
        [--flips] [--endless] [--progress N] [--asks N] [--cancels] [--ignores-sigterm] [--leaves] [--runs-away]
        [--mark TEXT]

WHERE is `start` or a method, such as `tools/list`; with `--after N` it comes N times before that. With `--for` it hangs
once, for S seconds. `--garbage` writes lines that are not messages before each answer, `--huge` sends 100 MB instead of
an answer. `--flips` changes the list of tools 100 times a second, in which names stand twice or are illegal.
`--endless` lists one page after another, each with one more tool of 4 MB. With `--asks` it sends its client N pings
before it answers a call, and reads nothing meanwhile; with `--cancels` it cancels each of them.
With `--progress` each call that asks for it reports progress N times, and once more in words.
`--leaves` starts three processes that ignore SIGTERM and keep the streams open: a child, one in
a session of its own, and a double-forked one. They have the same command line: `--mark` finds them. `--runs-away`
starts a detached process that forks and ends, for ever: whoever looks for it finds one that has ended. Its tools are
`pid`, and `tool-1`, `tool-2`, …
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any, Final

HUGE: Final = 100_000_000
ASKED: Final = f"asked-{{}}-{'x' * 1000}"
"""The id of a ping. Long, since each answer repeats it: a few hundred fill the pipe that is not read."""
CHANGED: Final = b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n'


def option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


class Server:
    def __init__(self) -> None:
        self.came: dict[str, int] = {}
        self.after = int(option("--after") or 0)
        self.flips = 0

    def misbehave(self, where: str) -> None:
        self.came[where] = self.came.get(where, 0) + 1
        if self.came[where] <= self.after:
            return
        if option("--dies") == where:
            os._exit(3)
        if option("--hangs") == where and (slow := option("--for")):
            time.sleep(float(slow if self.came[where] == self.after + 1 else 0))
            return
        while option("--hangs") == where:
            time.sleep(60)

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        match message["method"]:
            case "initialize":
                version = message["params"]["protocolVersion"]
                info = {"name": "hostile", "version": "1"}
                if "--flips" in sys.argv:
                    threading.Thread(target=self.flip, daemon=True).start()
                return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                names = ["pid", *(f"tool-{number}" for number in range(1, 1 + int(option("--tools") or 0)))]
                if self.flips:
                    names += ["pid", "", "no name!", "x" * 200, f"new-{self.flips}"]
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
                if "--endless" not in sys.argv:
                    return {"tools": tools}
                page = int((message.get("params") or {}).get("cursor") or 0)
                more = {"name": f"page-{page}", "description": "x" * 4_000_000, "inputSchema": {"type": "object"}}
                return {"tools": [*([] if page else tools), more], "nextCursor": str(page + 1)}
            case "tools/call":
                for number in range(int(option("--asks") or 0)):
                    ping = {"jsonrpc": "2.0", "id": ASKED.format(number), "method": "ping"}
                    sys.stdout.write(json.dumps(ping) + "\n")
                    if "--cancels" in sys.argv and number >= 100:
                        params = {"requestId": ASKED.format(number - 100)}
                        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
                        sys.stdout.write(json.dumps(note) + "\n")
                self.report((message["params"].get("_meta") or {}).get("progressToken"))
                return {"content": [{"type": "text", "text": str(os.getpid())}]}
            case "ping":
                return {}
        return None

    def report(self, token: object) -> None:
        notes: list[object] = [*range(int(option("--progress") or 0)), "a lot"]
        for progress in notes if token is not None else ():
            params = {"progressToken": token, "progress": progress, "message": "x" * 100}
            note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            sys.stdout.write(json.dumps(note) + "\n")

    def flip(self) -> None:
        while True:
            self.flips += 1
            os.write(
                1, CHANGED
            )  # whole, as each answer of this mode: the kernel does not mix writes of less than 4 KiB
            time.sleep(0.01)

    def run(self) -> None:
        self.misbehave("start")
        for line in sys.stdin:
            message = json.loads(line)
            if "id" not in message:
                continue
            self.misbehave(message["method"])
            if "--garbage" in sys.argv:
                sys.stdout.write('no message\n{"jsonrpc": 1}\n[]\n\x00\n')
            result = self.answer(message)
            if option("--huge") == message["method"]:
                result = {"content": [{"type": "text", "text": "x" * HUGE}]}
            answer = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
            sys.stdout.flush()


def leave() -> None:
    for detached, twice in ((False, False), (True, False), (True, True)):
        if os.fork():
            continue
        if detached:
            os.setsid()
        if twice and os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)


def run_away() -> None:
    if os.fork():
        return
    os.setsid()
    while True:
        if os.fork():
            os._exit(0)


if __name__ == "__main__":
    if "--ignores-sigterm" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--leaves" in sys.argv:
        leave()
    if "--runs-away" in sys.argv:
        run_away()
    try:
        Server().run()
    finally:
        while "--ignores-sigterm" in sys.argv:
            time.sleep(60)
