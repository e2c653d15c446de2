"""The resources of Computers (computer.txt, resources chapter): how they are listed, read and watched."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict, TypeVar, cast

from pydantic import BaseModel, ValidationError

from smcp_agent.cache import AnswerCache, Query
from smcp_agent.errors import BadReply
from smcp_agent.results import ResourceContents, resource_contents
from smcp_agent.rpc import RpcClient, mapping_of, reply_of
from smcp_agent.subscriptions import Subscription, Subscriptions
from smcp_proto.schemas import (
    CompleteReq,
    CompleteResult,
    ListResourcesReq,
    ListResourceTemplatesReq,
    ReadResourceReq,
    RequestEnvelope,
    SubscribeResourceReq,
    UnsubscribeResourceReq,
)
from smcp_proto.schemas import Resource as WireResource
from smcp_proto.schemas import ResourceTemplate as WireTemplate

Page = TypeVar("Page", bound=Mapping[str, Any])

logger = logging.getLogger(__name__)


class Resource(TypedDict):
    """A resource as its MCP server lists it (computer.txt, resources chapter, 3); what else the server says of it is
    there, too."""

    uri: str
    name: str
    title: NotRequired[str]
    description: NotRequired[str]
    mimeType: NotRequired[str]
    size: NotRequired[int]
    """Bytes."""
    annotations: NotRequired[dict[str, Any]]
    _meta: NotRequired[dict[str, Any]]
    serverId: NotRequired[str]
    """Its MCP server, where its Computer says so: ours does."""


class ResourceTemplate(TypedDict):
    """A template of URIs (RFC 6570) as its MCP server lists it; what else the server says of it is there, too."""

    uriTemplate: str
    name: str
    title: NotRequired[str]
    description: NotRequired[str]
    mimeType: NotRequired[str]
    serverId: NotRequired[str]
    """Its MCP server, where its Computer says so: ours does."""


class ResourceList(TypedDict):
    """One page of resources."""

    resources: list[Resource]
    nextCursor: NotRequired[str]
    """There are more: what `list_resources` takes as its `cursor`."""
    computer: NotRequired[str]
    """Whose they are."""
    meta: NotRequired[dict[str, Any]]
    """Names what could not be listed, where something could not: see `SKIPPED`."""


class ResourceTemplateList(TypedDict):
    """One page of templates."""

    resourceTemplates: list[ResourceTemplate]
    nextCursor: NotRequired[str]
    computer: NotRequired[str]
    meta: NotRequired[dict[str, Any]]


class Completion(TypedDict):
    """Values that complete an argument."""

    values: list[str]
    total: NotRequired[int]
    hasMore: NotRequired[bool]


@dataclass(frozen=True)
class ListQuery(Query):
    """All resources were asked for; `server` None: those of all MCP servers. The answer is a list of pages."""

    server: str | None


def is_listed(uri: str, pages: list[ResourceList]) -> bool:
    """Whether a resource is on one of these pages."""
    return any(each["uri"] == uri for page in pages for each in page["resources"])


SKIPPED: Final = ("a2c_skipped", "a2c_skipped_servers")
"""In the `meta` of a page: the Computers that are missing from a list over the office, and the MCP servers from a
Computer's."""


def is_partial(page: Mapping[str, Any]) -> bool:
    """Whether a page says that something is missing from the list."""
    meta = page.get("meta")
    return isinstance(meta, dict) and any(meta.get(key) for key in SKIPPED)


class ResourceMethods:
    """What `SmcpAgent` can do with resources."""

    _rpc: RpcClient
    _answers: AnswerCache
    _subscriptions: Subscriptions

    async def read_resource(self, computer: str, uri: str, *, server: str | None = None) -> Any:
        """A resource's content, asked for now.

        That is the parsed JSON of a document (`dpe://…`), which `smcp_proto.schemas` has models for (`DPEDocument`,
        `DPEPage`, `DPEElementDetail`); the `str` of other text; `bytes` of what is binary. `read_contents` gives all
        contents with their MIME types.

        Args:
            server: the MCP server to ask; None: the Computer finds out which one lists the URI.

        Raises:
            McpError: the MCP server refused it; `smcp_code` is SMCP_RESOURCE_NOT_FOUND where there is no such resource.
            RateLimited: too many reads; `details.retry_after_s` says when there may be more.
            BadReply: it is not what it is said to be, for example no JSON.
            SmcpError: as `call_tool`.
        """
        return (await self.read_contents(computer, uri, server=server)).value()

    async def read_contents(self, computer: str, uri: str, *, server: str | None = None) -> ResourceContents:
        """All contents of a resource, as they came. Arguments and errors are those of `read_resource`."""
        answered = await self._rpc.ask_mcp(
            "client:resources/read", ReadResourceReq, {"uri": uri}, computer=computer, server=server
        )
        return resource_contents(uri, answered.result, f"the content of {uri} that {answered.sender} sent")

    async def list_resources(
        self, computer: str | None = None, *, server: str | None = None, cursor: str | None = None
    ) -> ResourceList:
        """One page of resources, asked for now. Raises SmcpError: as `read_resource`.

        Args:
            computer: None: those of all Computers in the office, one after the other; a page names its Computer.
            server: only those of this MCP server.
            cursor: the `nextCursor` of the page before.
        """
        page = await list_page(self._rpc, ListResourcesReq, "resources", WireResource, computer, server, cursor)
        return cast("ResourceList", page)

    async def iter_resources(
        self, computer: str | None = None, *, server: str | None = None
    ) -> AsyncIterator[Resource]:
        """All resources, one page after the other, for `async for`. As `list_resources`."""
        async for page in pages(self.list_resources, computer, server):
            for each in page["resources"]:
                yield each

    async def resources(self, computer: str | None = None, *, server: str | None = None) -> tuple[Resource, ...]:
        """All resources, from the cache where nothing changed since and the list was complete. As `list_resources`."""
        pages = await self._answers.get(
            ListQuery(computer, server),
            lambda: self._all_pages(computer, server),
            keep=lambda pages: not any(map(is_partial, pages)),
        )
        return tuple(each for page in pages for each in page["resources"])

    async def list_resource_templates(
        self, computer: str | None = None, *, server: str | None = None, cursor: str | None = None
    ) -> ResourceTemplateList:
        """One page of templates, asked for now. Arguments and errors are those of `list_resources`."""
        page = await list_page(
            self._rpc, ListResourceTemplatesReq, "resourceTemplates", WireTemplate, computer, server, cursor
        )
        return cast("ResourceTemplateList", page)

    async def iter_resource_templates(
        self, computer: str | None = None, *, server: str | None = None
    ) -> AsyncIterator[ResourceTemplate]:
        """All templates, one page after the other, for `async for`. As `list_resource_templates`."""
        async for page in pages(self.list_resource_templates, computer, server):
            for each in page["resourceTemplates"]:
                yield each

    async def complete(
        self,
        computer: str,
        template: str,
        argument: str,
        value: str = "",
        *,
        chosen: Mapping[str, str] | None = None,
        server: str | None = None,
    ) -> Completion:
        """What an argument of a template may be (finder.txt, completion).

        Args:
            template: a `uriTemplate`, as `list_resource_templates` gives it.
            argument: one of its arguments: of documents `doc_ref`, `page_index`, `element_id`.
            value: what it begins with.
            chosen: the other arguments, as far as they are chosen.

        Raises SmcpError: as `read_resource`.
        """
        reference = {"type": "ref/resource", "uri": template}
        return await completed(self._rpc, computer, reference, argument, value, chosen, server)

    async def subscribe_resource(self, computer: str, uri: str, *, server: str | None = None) -> None:
        """Receive changes of a resource as `ResourceUpdated` events, until `unsubscribe_resource`.

        Raises:
            McpError: the MCP server refused it; `smcp_code` is SMCP_SUBSCRIPTION_NOT_SUPPORTED where it cannot tell.
            SmcpError: as `read_resource`.
        """
        await self._subscriptions.add(Subscription(computer, uri, server))

    async def unsubscribe_resource(self, computer: str, uri: str, *, server: str | None = None) -> None:
        """End what `subscribe_resource` began with the same arguments, also where SmcpError is raised."""
        await self._subscriptions.remove(Subscription(computer, uri, server))

    def subscriptions(self) -> tuple[Subscription, ...]:
        """The subscriptions, also those that are being renewed."""
        return self._subscriptions.all()

    async def _send_subscription(self, verb: Literal["subscribe", "unsubscribe"], wanted: Subscription) -> None:
        model = SubscribeResourceReq if verb == "subscribe" else UnsubscribeResourceReq
        params = {"uri": wanted.uri}
        await self._rpc.ask_mcp(
            f"client:resources/{verb}", model, params, computer=wanted.computer, server=wanted.server
        )

    async def _all_pages(self, computer: str | None, server: str | None) -> list[ResourceList]:
        return [page async for page in pages(self.list_resources, computer, server)]


async def completed(
    rpc: RpcClient,
    computer: str,
    reference: Mapping[str, str],
    argument: str,
    value: str,
    chosen: Mapping[str, str] | None,
    server: str | None,
) -> Completion:
    """What an argument of a template or a prompt (MCP's `ref`) may be. Raises SmcpError."""
    params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": value}}
    if others := mapping_of("chosen", chosen):
        params["context"] = {"arguments": others}
    answered = await rpc.ask_mcp("client:completion/complete", CompleteReq, params, computer=computer, server=server)
    reply_of(CompleteResult, answered.result, f"the completion of {argument!r} that {answered.sender} sent")
    return cast("Completion", answered.result["completion"])


_LISTS: Final = {
    "resources": "client:resources/list",
    "resourceTemplates": "client:resources/templates/list",
    "prompts": "client:prompts/list",
}


async def list_page(
    rpc: RpcClient,
    model: type[RequestEnvelope],
    key: str,
    item: type[BaseModel],
    computer: str | None,
    server: str | None,
    cursor: str | None,
) -> dict[str, Any]:
    """A page with those of its items that are what they should be; a server that lists others costs only them."""
    params = {} if cursor is None else {"cursor": cursor}
    answered = await rpc.ask_mcp(_LISTS[key], model, params, computer=computer, server=server)
    listed, following = answered.result.get(key), answered.result.get("nextCursor")
    wrong = f"{key}: is no list" if not isinstance(listed, list) else ""
    if following is not None and not isinstance(following, str):
        wrong = wrong or "nextCursor: is no text"
    if wrong or not isinstance(listed, list):
        what = f"the list of {'templates' if key == 'resourceTemplates' else key} that {answered.sender} sent"
        raise BadReply(f"{what} is malformed: {wrong}", details={"field": wrong.partition(":")[0]})
    items = [each for each in listed if _is(item, each)]
    if len(items) < len(listed):
        logger.warning("%d of %d %s are malformed, and left out", len(listed) - len(items), len(listed), key)
    page = {name: value for name, value in answered.result.items() if name != "nextCursor" or value is not None}
    return {**page, key: items, **({} if answered.computer is None else {"computer": answered.computer})}


async def pages(ask: Callable[..., Awaitable[Page]], computer: str | None, server: str | None) -> AsyncIterator[Page]:
    """One page after the other. Raises BadReply where a cursor leads back to an earlier one."""
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        page = await ask(computer, server=server, cursor=cursor)
        yield page
        cursor = page.get("nextCursor")
        if cursor is None:
            return
        if cursor in seen:
            raise BadReply("the list does not end: a page's cursor leads back to an earlier one")
        seen.add(cursor)


def _is(model: type[BaseModel], value: object) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True
