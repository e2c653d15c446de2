"""The tools of the context servers, by which a test changes what they hold and how they behave.

put(uri, resource?, contents?, document?)   list a resource (or a document), and tell that the list changed
put_template(name, template)                list a URI template, and tell that the list changed
remove(uri)                                 list it no more, and tell so
update(uri, text?)                          give it another text (None: leave it), and tell that it changed
tell_list()                                 tell that the list changed
misbehave(uri, how)                         see `HOWS`; "" behaves again; the URI `list` means `resources/list`,
                                            `templates` means `resources/templates/list` (only "never", "late")
delay(seconds)                              how long every read takes from now on
subscribed()                                the URIs that are subscribed now, as a JSON list
reads()                                     how often each URI was asked for, and `templates` while they are late, as
                                            a JSON object
die()                                       end the process
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import mcp_types as types
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError

from smcp_testing.mcp_servers.shelf import Shelf, document

RESOURCE_NOT_FOUND: Final = -32002
HOWS: Final = (
    "refuse",  # an error of the MCP protocol, with data
    "fail",  # an error with the text of an exception
    "not_found",
    "never",  # no answer
    "late",  # of the templates: those of now are sent once it behaves again
    "die",  # the process ends instead of an answer
    "big",  # 50 MB of text
    "mime",  # another MIME type than listed
    "blob",  # a blob only
    "no_contents",
    "empty_text",
    "other_uri",  # contents of another URI
    "no_list",  # `contents` (or `resources`) is not a list
    "bad_items",  # items that are not objects, or have neither text nor blob
    "vanish",  # it is listed no more from the first read on
    "endless",  # of the list: every page has a next one
    "subscribe_late",  # 2025: `resources/subscribe` is answered once it behaves again
    "subscribe_refuse",  # 2025: only `resources/subscribe` is refused
)
BIG: Final = 50_000_000
_SCHEMA: Final[dict[str, Any]] = {"type": "object"}


class ContextTools:
    """Args:
    bus: carries changes (2026); None: they are notifications of the session (2025).
    delay_s: how long every read takes.
    how: what misbehaves from the start: by URI, see `misbehave`.
    tells_list: whether it tells that its list changed.
    """

    def __init__(
        self,
        shelf: Shelf,
        bus: InMemorySubscriptionBus | None,
        delay_s: float,
        how: Mapping[str, str],
        *,
        tells_list: bool = True,
    ) -> None:
        self._shelf = shelf
        self._tells_list = tells_list
        self._bus = bus
        self._delay_s = delay_s
        self._how: dict[str, str] = dict(how)
        self._subscribed: Counter[str] = Counter()
        self._reads: Counter[str] = Counter()
        self._tools: dict[str, Callable[..., Awaitable[Any]]] = {
            "put": self._put,
            "put_template": self._put_template,
            "remove": self._remove,
            "update": self._update,
            "tell_list": self._tell_list,
            "misbehave": self._misbehave,
            "delay": self._set_delay,
            "subscribed": self._show_subscribed,
            "reads": self._show_reads,
            "pid": self._pid,
            "die": self._die,
        }

    async def list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=_SCHEMA) for name in self._tools])

    async def call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            found = await self._tools[params.name](ctx, **(params.arguments or {}))
        except Exception as error:  # noqa: BLE001 -- a test sees in the result what it did wrong
            return types.CallToolResult(content=[types.TextContent(text=repr(error))], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text=json.dumps(found))])

    async def subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        match self._how.get(params.uri):
            case "refuse" | "subscribe_refuse":
                raise MCPError(types.INVALID_PARAMS, "not for you", data={"uri": params.uri})
            case "never":
                await asyncio.Event().wait()
            case "subscribe_late":
                while self._how[params.uri]:  # noqa: ASYNC110 -- what ends it comes in another request
                    await asyncio.sleep(0.02)
        self._subscribed[params.uri] = 1
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._subscribed.pop(params.uri, None)
        return types.EmptyResult()

    @contextmanager
    def listening(self, uris: Iterable[str]) -> Iterator[None]:
        """While a stream of `subscriptions/listen` is open."""
        wanted = Counter(uris)
        self._subscribed += wanted
        try:
            yield
        finally:
            self._subscribed -= wanted

    async def listing(self, page: dict[str, Any]) -> dict[str, Any]:
        """What `resources/list` answers instead of `page`."""
        match self._how.get("list"):
            case "never":
                await asyncio.Event().wait()
            case "refuse":
                raise MCPError(types.INVALID_PARAMS, "no list for you")
            case "fail":
                raise RuntimeError("secret of the server")
            case "no_list":
                return {"resources": {"uri": "window://x"}}
            case "bad_items":
                return {"resources": [None, 7, {"name": "no uri"}, {"uri": 8}, *page["resources"]]}
            case "endless":
                return {**page, "nextCursor": "0"}
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
        return page

    async def listing_templates(self, page: dict[str, Any]) -> dict[str, Any]:
        """The same for `resources/templates/list`."""
        match self._how.get("templates"):
            case "never":
                await asyncio.Event().wait()
            case "late":
                self._reads["templates"] += 1
                while self._how["templates"]:  # noqa: ASYNC110 -- what ends it comes in another request
                    await asyncio.sleep(0.02)
        return page

    async def read(self, ctx: Any, uri: str) -> Any:
        """The contents of a resource."""
        self._reads[uri] += 1
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        how = self._how.get(uri, "")
        match how:
            case "refuse":
                raise MCPError(types.INVALID_PARAMS, "not for you", data={"uri": uri})
            case "fail":
                raise RuntimeError("secret of the server")
            case "never":
                await asyncio.Event().wait()
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "vanish":
                self._shelf.items.pop(uri, None)
        contents = None if how in ("not_found", "vanish") else self._shelf.read(uri)
        if contents is None:
            code = RESOURCE_NOT_FOUND if self._bus is None else types.INVALID_PARAMS
            raise MCPError(code, "Resource not found", data={"uri": uri})
        return _bent(how, uri, contents)

    async def _put(self, ctx: Any, uri: str = "", **fields: Any) -> str:
        if "document" in fields:
            uri = self._shelf.put_document(document(**fields["document"]))
        else:
            self._shelf.put(uri, fields.get("resource"), fields.get("contents"))
        await self._tell_list(ctx)
        return uri

    async def _put_template(self, ctx: Any, name: str, template: str) -> str:
        self._shelf.more_templates.append({"uriTemplate": template, "name": name})
        await self._tell_list(ctx)
        return template

    async def _remove(self, ctx: Any, uri: str) -> str:
        del self._shelf.items[uri]
        self._shelf.documents.pop(uri.rsplit("/", 1)[-1], None)
        await self._tell_list(ctx)
        return uri

    async def _update(self, ctx: Any, uri: str, text: str | None = None) -> str:
        if text is not None:
            self._shelf.items[uri].contents = [{"uri": uri, "mimeType": "text/plain", "text": text}]
        if self._bus is not None:
            await self._bus.publish(ResourceUpdated(uri))
        elif self._subscribed[uri]:
            await ctx.session.send_resource_updated(uri)
        return uri

    async def _tell_list(self, ctx: Any) -> str:
        if not self._tells_list:
            return "not told"
        if self._bus is not None:
            await self._bus.publish(ResourcesListChanged())
        else:
            await ctx.session.send_resource_list_changed()
        return "told"

    async def _misbehave(self, ctx: Any, uri: str, how: str) -> str:
        if how and how not in HOWS:
            raise ValueError(how)
        self._how[uri] = how
        return how

    async def _set_delay(self, ctx: Any, seconds: float) -> float:
        self._delay_s = seconds
        return seconds

    async def _show_subscribed(self, ctx: Any) -> list[str]:
        return sorted(uri for uri, count in self._subscribed.items() if count > 0)

    async def _show_reads(self, ctx: Any) -> dict[str, int]:
        return dict(self._reads)

    async def _pid(self, ctx: Any) -> int:
        return os.getpid()

    async def _die(self, ctx: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _bent(how: str, uri: str, contents: list[dict[str, Any]]) -> Any:
    match how:
        case "big":
            return [{"uri": uri, "mimeType": "text/plain", "text": "x" * BIG}]
        case "mime":
            return [{**content, "mimeType": "image/png"} for content in contents]
        case "blob":
            return [{"uri": uri, "mimeType": "image/png", "blob": "AAEC"}]
        case "no_contents":
            return []
        case "empty_text":
            return [{"uri": uri, "text": ""}]
        case "other_uri":
            return [{**content, "uri": "window://elsewhere"} for content in contents]
        case "no_list":
            return "no list"
        case "bad_items":
            return [None, 7, {"uri": uri}, {"uri": uri, "text": 8}, *contents]
        case _:
            return contents
