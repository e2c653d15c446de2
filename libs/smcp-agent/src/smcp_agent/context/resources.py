"""The resources of Computers (computer.txt, resources chapter): how they are listed, read and watched."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, NotRequired, TypedDict, TypeVar, cast

from pydantic import BaseModel, ValidationError

from smcp_agent.cache import AnswerCache, Partial
from smcp_agent.context.subscriptions import Subscription, Subscriptions
from smcp_agent.errors import BadReply
from smcp_agent.results import ResourceContents, resource_contents
from smcp_agent.rpc import Answered, Asker, arguments_of, reply_of
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

Item = TypeVar("Item")

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


class ListQuery(NamedTuple):
    """Whose resources were listed; None: those of all."""

    computer: str | None
    server: str | None


SKIPPED: Final = ("a2c_skipped", "a2c_skipped_servers")
"""In the `meta` of a page: the Computers that are missing from a list over the office, and the MCP servers from a
Computer's."""


def is_partial(page: Mapping[str, Any]) -> bool:
    """Whether a page says that something is missing from the list."""
    meta = page.get("meta")
    return isinstance(meta, dict) and any(meta.get(key) for key in SKIPPED)


class ResourceMethods:
    """What `SmcpAgent` can do with resources."""

    _asker: Asker
    _resources: AnswerCache[ListQuery, tuple[Resource, ...]]
    _subscriptions: Subscriptions

    async def read_resource(self, computer: str, uri: str, *, server: str | None = None) -> Any:
        """A resource's content, asked for now, in the form in which it is of use:

        - of a document (`dpe://…`) the parsed JSON: a dict as `Document`, `Page` or `ElementDetail` say;
        - of what else is text a `str`;
        - of what is binary `bytes`.

        `read_contents` gives the same with its types, and whatever a resource has beside its first content.

        Args:
            server: the MCP server to ask; None: the Computer finds out which one lists the URI.

        Raises:
            NotFound: there is no such Computer in the office.
            McpError: the MCP server refused it; `smcp_code` is SMCP_RESOURCE_NOT_FOUND where there is no such resource.
            TooLarge: it is above the limit; `details.limit` has it in bytes.
            RateLimited: too many reads; `details.retry_after_s` says when there may be more.
            BadReply: it is not what it is said to be, for example no JSON.
            SmcpError: as `call_tool`.
        """
        return (await self.read_contents(computer, uri, server=server)).value()

    async def read_contents(self, computer: str, uri: str, *, server: str | None = None) -> ResourceContents:
        """All contents of a resource, as they came. Arguments and errors are those of `read_resource`."""
        answered = await self._asker.ask_mcp(
            "client:resources/read", ReadResourceReq, {"uri": uri}, computer=computer, server=server
        )
        return resource_contents(uri, answered.result, answered.what(f"the content of {uri}", computer))

    async def list_resources(
        self, computer: str | None = None, *, server: str | None = None, cursor: str | None = None
    ) -> ResourceList:
        """One page of resources, asked for now.

        Args:
            computer: whose; None: those of all Computers in the office, one after the other. A page is of one of them,
                and names it.
            server: only those of this MCP server.
            cursor: the `nextCursor` of the page before.

        Raises:
            Malformed: the cursor is none.
            SmcpError: as `read_resource`.
        """
        params = {} if cursor is None else {"cursor": cursor}
        answered = await self._asker.ask_mcp(
            "client:resources/list", ListResourcesReq, params, computer=computer, server=server
        )
        what = answered.what("the list of resources", computer)
        return cast("ResourceList", _page(answered, "resources", WireResource, what))

    def iter_resources(self, computer: str | None = None, *, server: str | None = None) -> AsyncIterator[Resource]:
        """All resources, one page after the other, for `async for`. As `list_resources`."""

        async def page(cursor: str | None) -> tuple[list[Resource], str | None]:
            listed = await self.list_resources(computer, server=server, cursor=cursor)
            return listed["resources"], listed.get("nextCursor")

        return _all_pages(page)

    async def resources(self, computer: str | None = None, *, server: str | None = None) -> tuple[Resource, ...]:
        """All resources as they are known; asks only where they are not known, or where a notification said since that
        they are others, or one of them another. A list that lacks those of a Computer or of an MCP server is given and
        not kept: nothing would say that it is old.

        Raises:
            SmcpError: as `list_resources`.
        """
        return await self._resources.get(ListQuery(computer, server))

    async def list_resource_templates(
        self, computer: str | None = None, *, server: str | None = None, cursor: str | None = None
    ) -> ResourceTemplateList:
        """One page of templates, asked for now. Arguments and errors are those of `list_resources`."""
        params = {} if cursor is None else {"cursor": cursor}
        answered = await self._asker.ask_mcp(
            "client:resources/templates/list", ListResourceTemplatesReq, params, computer=computer, server=server
        )
        what = answered.what("the list of templates", computer)
        return cast("ResourceTemplateList", _page(answered, "resourceTemplates", WireTemplate, what))

    def iter_resource_templates(
        self, computer: str | None = None, *, server: str | None = None
    ) -> AsyncIterator[ResourceTemplate]:
        """All templates, one page after the other, for `async for`. As `list_resource_templates`."""

        async def page(cursor: str | None) -> tuple[list[ResourceTemplate], str | None]:
            listed = await self.list_resource_templates(computer, server=server, cursor=cursor)
            return listed["resourceTemplates"], listed.get("nextCursor")

        return _all_pages(page)

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

        Raises:
            Malformed: an argument is not what the protocol allows; `details.field` names it.
            McpError: the MCP server refused it, or completes nothing.
            SmcpError: as `read_resource`.
        """
        params: dict[str, Any] = {
            "ref": {"type": "ref/resource", "uri": template},
            "argument": {"name": argument, "value": value},
        }
        if others := arguments_of(chosen):
            params["context"] = {"arguments": others}
        answered = await self._asker.ask_mcp(
            "client:completion/complete", CompleteReq, params, computer=computer, server=server
        )
        reply_of(CompleteResult, answered.result, answered.what(f"the completion of {argument!r}", computer))
        return cast("Completion", answered.result["completion"])

    async def subscribe_resource(self, computer: str, uri: str, *, server: str | None = None) -> None:
        """Be told of changes of a resource, as `ResourceUpdated`, until `unsubscribe_resource`.

        It is subscribed to again by itself when the Computer left and came back, or the agent itself did.

        Raises:
            McpError: the MCP server refused it; `smcp_code` is SMCP_SUBSCRIPTION_NOT_SUPPORTED where it cannot tell.
            SmcpError: as `read_resource`.
        """
        await self._subscriptions.add(Subscription(computer, uri, server))

    async def unsubscribe_resource(self, computer: str, uri: str, *, server: str | None = None) -> None:
        """End what `subscribe_resource` began with the same arguments. It is not renewed, whatever is answered.

        Raises:
            SmcpError: as `subscribe_resource`.
        """
        await self._subscriptions.remove(Subscription(computer, uri, server))

    def subscriptions(self) -> tuple[Subscription, ...]:
        """What is subscribed to, or is being subscribed to again."""
        return self._subscriptions.all()

    async def _subscribe(self, subscription: Subscription) -> None:
        await self._ask_of("client:resources/subscribe", SubscribeResourceReq, subscription)

    async def _unsubscribe(self, subscription: Subscription) -> None:
        await self._ask_of("client:resources/unsubscribe", UnsubscribeResourceReq, subscription)

    async def _ask_of(self, event: str, model: type[RequestEnvelope], subscription: Subscription) -> None:
        params = {"uri": subscription.uri}
        await self._asker.ask_mcp(event, model, params, computer=subscription.computer, server=subscription.server)

    async def _list_all(self, query: ListQuery) -> tuple[Resource, ...] | Partial[tuple[Resource, ...]]:
        partial = False

        async def page(cursor: str | None) -> tuple[list[Resource], str | None]:
            nonlocal partial
            listed = await self.list_resources(query.computer, server=query.server, cursor=cursor)
            partial = partial or is_partial(listed)
            return listed["resources"], listed.get("nextCursor")

        found = tuple([each async for each in _all_pages(page)])
        return Partial(found) if partial else found


async def _all_pages(
    page: Callable[[str | None], Awaitable[tuple[list[Item], str | None]]],
) -> AsyncIterator[Item]:
    """The items of all pages.

    Raises:
        BadReply: a cursor leads back to an earlier page.
    """
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        items, cursor = await page(cursor)
        for item in items:
            yield item
        if cursor is None:
            return
        if cursor in seen:
            raise BadReply("the list does not end: a page's cursor leads back to an earlier one")
        seen.add(cursor)


def _page(answered: Answered, key: str, item: type[BaseModel], what: str) -> dict[str, Any]:
    """A page with those of its items that are what they should be; a server that lists others costs only them.

    Raises:
        BadReply: it is no page.
    """
    result, computer = answered.result, answered.computer
    listed, cursor = result.get(key), result.get("nextCursor")
    for field, right, kind in ((key, isinstance(listed, list), "list"), ("nextCursor", _is_text(cursor), "text")):
        if not right:
            raise BadReply(f"{what} is malformed: {field}: is no {kind}", details={"field": field})
    assert isinstance(listed, list)
    items = [each for each in listed if _is(item, each)]
    if len(items) < len(listed):
        logger.warning("%d of %d %s are malformed, and left out", len(listed) - len(items), len(listed), key)
    page = {name: value for name, value in result.items() if name != "nextCursor" or value is not None}
    return {**page, key: items, **({} if computer is None else {"computer": computer})}


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is(model: type[BaseModel], value: object) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True
