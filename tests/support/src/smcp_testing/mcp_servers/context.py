"""An MCP server with windows and documents, that tests can change and make misbehave; run as `context_2025` (the
handshake, `resources/subscribe`) or `context_2026` (discovery, `subscriptions/listen`).

    python -m smcp_testing.mcp_servers.context_2026 [--name NAME] [--host HOST] [--windows N] [--documents N]
        [--content JSON] [--page-size N] [--delay SECONDS] [--without WHAT ...] [--misbehave JSON]
        [--prompt NAME ...] [--transport stdio|streamable]

It lists `window://HOST/0` ..., `dpe://HOST/doc-0` ..., and what `--content` adds: a list of objects with `uri`, and
optionally `resource` (fields of the listed resource) and `contents` (what reading gives), or `document` (fields for
`shelf.document`). `--without` leaves out `resources`, `subscribe`, `list_changed` or `completions`. Its tools are in
`context_tools`; `--misbehave` is an object of what `misbehave` says of URIs. Resources are
sent as they are, valid or not. Each `--prompt` greets whom its
argument `who` names.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import mcp_types as types
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError

from smcp_testing.mcp_servers.context_tools import ContextTools
from smcp_testing.mcp_servers.http_serving import serve_on_loopback
from smcp_testing.mcp_servers.shelf import HOST, Shelf, document

Era = Literal["2025", "2026"]
_RAW: Final = frozenset({"resources/list", "resources/templates/list", "resources/read"})


class ContextServer:
    """Args:
    without: what it does not offer.
    how: what misbehaves from the start.
    """

    def __init__(
        self,
        era: Era,
        name: str,
        shelf: Shelf,
        *,
        page_size: int,
        delay_s: float,
        without: set[str],
        how: Mapping[str, str],
        prompts: Sequence[str],
    ) -> None:
        self.era: Era = era
        self._prompts = prompts
        self._shelf = shelf
        self._page_size = page_size
        self._without = without
        bus = InMemorySubscriptionBus() if era == "2026" else None
        self._tools = ContextTools(shelf, bus, delay_s, how, tells_list="list_changed" not in without)
        self._listen = ListenHandler(bus) if bus is not None else None
        self.server: Server[Any] = Server(name, version="1")
        self._register()
        self.options = self.server.create_initialization_options(
            NotificationOptions(resources_changed="list_changed" not in without, tools_changed=False)
        )

    def _register(self) -> None:
        add = self.server.add_request_handler
        add("tools/list", types.PaginatedRequestParams, self._tools.list_tools)
        add("tools/call", types.CallToolRequestParams, self._tools.call)
        if self._prompts:
            add("prompts/list", types.PaginatedRequestParams, self._list_prompts)
            add("prompts/get", types.GetPromptRequestParams, self._get_prompt)
        if "resources" in self._without:
            return
        add("resources/list", types.PaginatedRequestParams, _unreached)
        add("resources/templates/list", types.PaginatedRequestParams, _unreached)
        add("resources/read", types.ReadResourceRequestParams, _unreached)
        if "completions" not in self._without:
            add("completion/complete", types.CompleteRequestParams, self._complete)
        if self._listen is not None:
            add("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listening)
            add("server/discover", types.RequestParams, self._discover)
        elif "subscribe" not in self._without:
            add("resources/subscribe", types.SubscribeRequestParams, self._tools.subscribe)
            add("resources/unsubscribe", types.UnsubscribeRequestParams, self._tools.unsubscribe)
        self.server.middleware[:] = [self._raw]  # and no spans: benchmarks use these servers, too

    async def _raw(self, ctx: Any, call_next: Any) -> Any:
        """Answers that the SDK's models would refuse to carry go out as they are."""
        if ctx.method not in _RAW:
            return await call_next(ctx)
        params = dict(ctx.params or {})
        match ctx.method:
            case "resources/list":
                result = await self._tools.listing(self._paged("resources", self._shelf.listed(), params))
            case "resources/templates/list":
                page = self._paged("resourceTemplates", self._shelf.templates(), params)
                result = await self._tools.listing_templates(page)
            case _:
                result = {"contents": await self._tools.read(ctx, str(params.get("uri")))}
        if self.era == "2026":
            result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        return result

    def _paged(self, key: str, items: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
        if not self._page_size:
            return {key: items}
        start = int(params.get("cursor") or 0)
        end = start + self._page_size
        page: dict[str, Any] = {key: items[start:end]}
        if end < len(items):
            page["nextCursor"] = str(end)
        return page

    async def _list_prompts(self, ctx: Any, params: Any) -> types.ListPromptsResult:
        who = types.PromptArgument(name="who", required=True)
        listed = [types.Prompt(name=name, title=name.title(), arguments=[who]) for name in self._prompts]
        return types.ListPromptsResult(prompts=listed)

    async def _get_prompt(self, ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        given = params.arguments or {}
        if params.name not in self._prompts:
            raise MCPError(types.INVALID_PARAMS, f"{params.name} is not a prompt")
        text = types.TextContent(type="text", text=f"{self.server.name}: {params.name} {given['who']}")
        meta = {"a2c_timeout": True, "later": 1}
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=text)], _meta=meta)

    async def _complete(self, ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        if isinstance(params.ref, types.PromptReference):
            return types.CompleteResult(completion=types.Completion(values=[f"{params.argument.value}anna"]))
        chosen = params.context.arguments if params.context is not None else None
        values = self._shelf.complete(params.argument.name, params.argument.value, chosen or {})
        completion = types.Completion(values=values[:100], total=len(values), has_more=False)
        meta = {"a2c_skipped_servers": ["not its word"], "later": True}
        return types.CompleteResult(completion=completion, _meta=meta)

    async def _discover(self, ctx: Any, params: types.RequestParams) -> types.DiscoverResult:
        found = self.server.get_capabilities(protocol_version="2026-07-28")
        if found.resources is not None:
            offered = {"subscribe": "subscribe", "list_changed": "list_changed"}
            said = {field: what not in self._without for field, what in offered.items()}
            found = found.model_copy(update={"resources": types.ResourcesCapability(**said)})
        return types.DiscoverResult(supported_versions=["2026-07-28"], capabilities=found)

    async def _listening(self, ctx: Any, params: types.SubscriptionsListenRequestParams) -> Any:
        assert self._listen is not None
        wanted = params.notifications
        if "subscribe" in self._without:
            wanted = wanted.model_copy(update={"resource_subscriptions": None})
        if "list_changed" in self._without:
            wanted = wanted.model_copy(update={"resources_list_changed": None})
        with self._tools.listening(wanted.resource_subscriptions or ()):
            return await self._listen(replace(ctx), params.model_copy(update={"notifications": wanted}))

    async def serve_stdio(self) -> None:
        async with stdio_server() as (read, write):
            if self.era == "2025":
                await serve_loop(self.server, read, write, lifespan_state={}, init_options=self.options)
            else:
                await self.server.run(read, write, self.options)


async def _unreached(ctx: Any, params: Any) -> dict[str, Any]:
    """Stands for a method, so that its capability is declared: `ContextServer._raw` answers."""
    raise NotImplementedError


def build(era: Era, options: argparse.Namespace) -> ContextServer:
    shelf = Shelf(options.host)
    for number in range(options.windows):
        shelf.put(f"window://{options.host}/{number}")
    for number in range(options.documents):
        shelf.put_document(document(f"doc-{number}"))
    for entry in json.loads(options.content):
        if "document" in entry:
            shelf.put_document(document(**entry["document"]))
        else:
            shelf.put(entry["uri"], entry.get("resource"), entry.get("contents"))
    return ContextServer(
        era,
        options.name,
        shelf,
        page_size=options.page_size,
        delay_s=options.delay,
        without=set(options.without),
        how=json.loads(options.misbehave),
        prompts=options.prompt,
    )


def main(era: Era) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "streamable"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--name", default="context")
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--windows", type=int, default=0)
    parser.add_argument("--documents", type=int, default=0)
    parser.add_argument("--content", default="[]")
    parser.add_argument("--page-size", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--misbehave", default="{}")
    parser.add_argument("--prompt", action="append", default=[])
    options = parser.parse_args()
    server = build(era, options)
    if options.transport == "stdio":
        asyncio.run(server.serve_stdio())
    else:
        asyncio.run(serve_on_loopback(server.server.streamable_http_app(), options.port))
