"""An MCP server with windows, written by hand and without the SDK: it starts at once and costs next to no processor, so
that a benchmark shows who asks it; and it can end its streams of changes as the SDK's servers cannot.

    python -m smcp_testing.mcp_servers.lean [--era 2025|2026] [--host HOST] [--windows N] [--documents N]
        [--delay SECONDS] [--end-streams N] [--unacknowledged] [--most N] [--late]

It speaks JSON-RPC over standard input and output, lists `window://HOST/0` ... and `dpe://HOST/doc-0` ... (of these it
has the metadata alone, level 1), gives each after `--delay`, and tells of changes: by `resources/subscribe` in the 2025
era, on streams of `subscriptions/listen` in the 2026 era. The first `--end-streams` of these (-1: all) end right after
their acknowledgement; or, with `--unacknowledged`, without one. A stream tells of the first `--most` of the resources
that it is asked for. With `--late`, `LATE_S` after a stream was acknowledged all earlier ones tell that their resources
changed, as over HTTP, where streams have no order among them.
Its tools:

put(uri)               list one more, and tell that the list changed
update(uri, text?)     give it another text, and tell who subscribed to it
subscribed()           the URIs with a subscription now
most(count)            what `--most` says, for the streams from now on
end()                  end all streams
listens()              when each stream was asked for, in seconds of a clock of its own
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

Json = dict[str, Any]

VERSIONS: Final = {"2025": "2025-11-25", "2026": "2026-07-28"}
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
METHOD_NOT_FOUND: Final = -32601
LATE_S: Final = 0.2
NOT_FOUND: Final = {"2025": -32002, "2026": -32602}


class LeanServer(asyncio.Protocol):
    """Args:
    end_streams, acknowledge, most, late: see the options.
    """

    def __init__(
        self,
        era: str,
        uris: list[str],
        *,
        delay_s: float,
        end_streams: int,
        acknowledge: bool,
        most: int,
        late: bool,
    ) -> None:
        self.over = asyncio.Event()
        self._era = era
        self._delay_s = delay_s
        self._end_streams = end_streams
        self._acknowledge = acknowledge
        self._most = most
        self._late = late
        self._texts = {uri: text_of(uri) for uri in uris}
        self._subscribed: set[str] = set()
        self._streams: dict[int | str, Json] = {}
        """The notifications that each open stream carries, by the id of its request."""
        self._listens: list[float] = []
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, Callable[[Json], Json]] = {
            "ping": lambda _: {},
            "tools/list": self._list_tools,
            "tools/call": self._call,
            "resources/list": self._list,
            "resources/templates/list": lambda _: {"resourceTemplates": []},
        }
        if era == "2025":
            self._answers["initialize"] = self._initialize
            self._answers["resources/subscribe"] = self._subscribe
            self._answers["resources/unsubscribe"] = self._unsubscribe
        else:
            self._answers["server/discover"] = self._discover
        self._tools: dict[str, Callable[..., Any]] = {
            "put": self._put,
            "update": self._update,
            "subscribed": self._told_of,
            "most": self._set_most,
            "end": self._end,
            "listens": lambda: self._listens,
        }

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._received(json.loads(line))

    def eof_received(self) -> None:
        self.over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    def _received(self, message: Json) -> None:
        method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
        if number is None:
            if method == "notifications/cancelled":
                self._streams.pop(params.get("requestId", ""), None)
        elif method == "resources/read":
            self._loop.call_later(self._delay_s, self._read, number, params["uri"])
        elif method == "subscriptions/listen" and self._era == "2026":
            self._listen(number, params["notifications"])
        elif method in self._answers:
            self._answer(number, self._answers[method](params))
        else:
            self._refuse(number, METHOD_NOT_FOUND, "Method not found")

    def _initialize(self, _: Json) -> Json:
        return {
            "protocolVersion": VERSIONS[self._era],
            "capabilities": self._capabilities,
            "serverInfo": {"name": "lean", "version": "1"},
        }

    def _discover(self, _: Json) -> Json:
        return {"supportedVersions": [VERSIONS[self._era]], "capabilities": self._capabilities}

    @property
    def _capabilities(self) -> Json:
        return {"tools": {}, "resources": {"subscribe": True, "listChanged": True}}

    def _list_tools(self, _: Json) -> Json:
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in self._tools]}

    def _call(self, params: Json) -> Json:
        found = self._tools[params["name"]](**params.get("arguments") or {})
        return {"content": [{"type": "text", "text": json.dumps(found)}], "isError": False}

    def _list(self, _: Json) -> Json:
        named = [{"uri": uri, "name": uri.rpartition("/")[2], "mimeType": "text/plain"} for uri in self._texts]
        return {"resources": named}

    def _read(self, number: int | str, uri: str) -> None:
        if uri not in self._texts:
            self._refuse(number, NOT_FOUND[self._era], "Resource not found")
            return
        self._answer(number, {"contents": [{"uri": uri, "mimeType": "text/plain", "text": self._texts[uri]}]})

    def _subscribe(self, params: Json) -> Json:
        self._subscribed.add(params["uri"])
        return {}

    def _unsubscribe(self, params: Json) -> Json:
        self._subscribed.discard(params["uri"])
        return {}

    def _listen(self, number: int | str, wanted: Json) -> None:
        ends = self._end_streams < 0 or len(self._listens) < self._end_streams
        self._listens.append(time.monotonic())
        meta = {SUBSCRIPTION_ID: number}
        wanted = {**wanted, "resourceSubscriptions": wanted.get("resourceSubscriptions", [])[: self._most]}
        if self._acknowledge or not ends:
            self._notify("subscriptions/acknowledged", {"notifications": wanted, "_meta": meta})
        if self._late:
            self._loop.call_later(LATE_S, self._tell_all, dict(self._streams))
        if ends:
            self._answer(number, {"_meta": meta})
        else:
            self._streams[number] = wanted

    def _tell_all(self, streams: dict[int | str, Json]) -> None:
        for number, wanted in streams.items():
            for uri in wanted["resourceSubscriptions"]:
                self._notify("resources/updated", {"uri": uri, "_meta": {SUBSCRIPTION_ID: number}})

    def _set_most(self, count: int) -> int:
        self._most = count
        return count

    def _end(self) -> int:
        ended, self._streams = self._streams, {}
        for number in ended:
            self._answer(number, {"_meta": {SUBSCRIPTION_ID: number}})
        return len(ended)

    def _put(self, uri: str) -> str:
        self._texts[uri] = text_of(uri)
        if self._era == "2025":
            self._notify("resources/list_changed", {})
        for number, wanted in self._streams.items():
            if wanted.get("resourcesListChanged"):
                self._notify("resources/list_changed", {"_meta": {SUBSCRIPTION_ID: number}})
        return uri

    def _update(self, uri: str, text: str = "") -> str:
        self._texts[uri] = text
        if uri in self._subscribed:
            self._notify("resources/updated", {"uri": uri})
        for number, wanted in self._streams.items():
            if uri in wanted.get("resourceSubscriptions", ()):
                self._notify("resources/updated", {"uri": uri, "_meta": {SUBSCRIPTION_ID: number}})
        return uri

    def _told_of(self) -> list[str]:
        streams = (wanted.get("resourceSubscriptions", ()) for wanted in self._streams.values())
        return sorted(self._subscribed.union(*streams))

    def _answer(self, number: int | str, result: Json) -> None:
        if self._era == "2026":
            result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        self._send({"id": number, "result": result})

    def _refuse(self, number: int | str, code: int, why: str) -> None:
        self._send({"id": number, "error": {"code": code, "message": why}})

    def _notify(self, what: str, params: Json) -> None:
        self._send({"method": f"notifications/{what}", "params": params})

    def _send(self, message: Json) -> None:
        sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        sys.stdout.buffer.flush()


def text_of(uri: str) -> str:
    """Of a document its metadata."""
    ref = uri.rpartition("/")[2]
    if not uri.startswith("dpe:"):
        return f"text of {uri}"
    number = int(ref.rpartition("-")[2])
    metadata = {
        "doc_ref": ref,
        "uri": uri,
        "file_type": ("xlsx", "pdf", "pptx")[number % 3],
        "title": f"{number} 年度报告",
        "page_count": number % 50,
        "keywords": ["财务", "年报", f"keyword {number % 100}"],
        "summary": "年度财务与运营报告, revenue by quarter and region " * 4,
        "last_modified": f"2026-01-{number % 28 + 1:02}T08:30:00+08:00",
    }
    return json.dumps(metadata)


async def serve(options: argparse.Namespace) -> None:
    """Until standard input ends."""
    server = LeanServer(
        options.era,
        [
            *(f"window://{options.host}/{number}" for number in range(options.windows)),
            *(f"dpe://{options.host}/doc-{number}" for number in range(options.documents)),
        ],
        delay_s=options.delay,
        end_streams=options.end_streams,
        acknowledge=not options.unacknowledged,
        most=options.most,
        late=options.late,
    )
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: server, sys.stdin)
    try:
        await server.over.wait()
    finally:
        transport.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=list(VERSIONS), default="2025")
    parser.add_argument("--host", default="com.example.lean")
    parser.add_argument("--windows", type=int, default=0)
    parser.add_argument("--documents", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--end-streams", type=int, default=0)
    parser.add_argument("--unacknowledged", action="store_true")
    parser.add_argument("--most", type=int, default=sys.maxsize)
    parser.add_argument("--late", action="store_true")
    asyncio.run(serve(parser.parse_args()))
