"""What an Agent reads of Computers: desktops (desktop.txt), documents (finder.txt), resources (computer.txt, resources
chapter) and prompts."""

import asyncio
import hmac
import logging
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final, Literal, TypedDict, Unpack

from pydantic import OnErrorOmit

from smcp_agent.cache import MAX_CACHED_BYTES, MIB, AnswerCache, Query, size_of
from smcp_agent.errors import BadReply, SmcpError, TooLarge
from smcp_agent.office import Office, Subscription, Subscriptions
from smcp_agent.results import ResourceContents, resource_contents
from smcp_agent.rpc import JsonObject, RpcClient, mapping_of, reply_of
from smcp_proto import schemas
from smcp_proto.schemas.base import Wire, absent

logger = logging.getLogger(__name__)

SKIPPED: Final = ("a2c_skipped", "a2c_skipped_servers")
"""In the `meta` of a page: the Computers that are missing from a list over the office, and the MCP servers from a
Computer's."""


MAX_LIST: Final = 16 * MIB
"""For one list of a Computer, as `size_of` counts; `MAX_CACHED_BYTES` is for all lists that are read at a time."""
LEAST_ITEM: Final = 1024
LEAST_PAGE: Final = 8 * LEAST_ITEM
"""What each item counts at least, and each page: a list of empty pages ends, too, after 2,048 requests."""


class _Page(Wire):
    nextCursor: str | None = absent()  # noqa: N815 -- as on the wire


class _Resources(_Page):
    resources: list[OnErrorOmit[schemas.Resource]]


class _Templates(_Page):
    resourceTemplates: list[OnErrorOmit[schemas.ResourceTemplate]]  # noqa: N815


class _Prompts(_Page):
    prompts: list[OnErrorOmit[schemas.Prompt]]


_LISTS: Final[Mapping[str, tuple[str, str, type[_Page]]]] = {
    "resources": ("resources", "client:resources/list", _Resources),
    "resourceTemplates": ("templates", "client:resources/templates/list", _Templates),
    "prompts": ("prompts", "client:prompts/list", _Prompts),
}


_PROCESS_KEY: Final = secrets.token_bytes()

_UNSEEN: Final = r"[\s\u00ad\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]*+"


def _in_any_form(word: str) -> str:
    """A pattern for the word in letters of either width, with unseen characters between them."""
    return _UNSEEN.join(f"[{letter}{chr(ord(letter) + 0xFEE0)}]" for letter in word)


_TAG: Final = re.compile(
    f"([<＜﹤])(?={_UNSEEN}[/／∕⁄]?{_UNSEEN}(?:{_in_any_form('window')}|{_in_any_form('desktop')}))",
    re.IGNORECASE,
)
"""What a model might read as one of our tags. Possessive, so that no text takes more than one pass."""

MAX_AGE_S: Final = 10.0
"""Not every MCP server announces that a window changed. A window is read again when it is older (seconds)."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a desktop."""

    uri: str
    text: str
    """Empty where the window has none."""
    age: float = 0.0
    """How long before the answer it was read (seconds): its MCP server is slow. 0: it was read for the answer."""


def windows(desktop: Mapping[str, Any]) -> tuple[Window, ...]:
    """The windows of a desktop, each with its URI and its text apart."""
    parts = [entry.partition("\n\n") for entry in desktop["desktops"]]
    ages = chain(desktop.get("a2c_ages", ()), repeat(0.0))
    return tuple(Window(uri, text, age) for (uri, _, text), age in zip(parts, ages, strict=False))


def prompt_text(desktops: Mapping[str, Mapping[str, Any]]) -> str:
    """Desktops, by their Computers, as a block of text for a model's prompt; empty where no window is open.

    What a window shows was written by others. It can neither end its own block nor open another one's: the tags end
    with a code that it cannot know (`<window-3f9a1c20 uri="…">`), and what looks like a tag of ours in it gets a
    backslash behind the `<`. The same desktops give the same text, so that a model's cache of prompts holds.
    """
    opened = {computer: windows(desktop) for computer, desktop in desktops.items()}
    code = hmac.digest(_PROCESS_KEY, repr(opened).encode("utf-8", "surrogatepass"), "sha256").hex()[:8]
    lines = []
    for computer, its_windows in opened.items():
        lines += [f'<desktop-{code} computer="{_attribute(computer)}">'] if its_windows else []
        for window in its_windows:
            age = f' read="{window.age:.0f} s ago"' if window.age else ""
            lines.append(f'<window-{code} uri="{_attribute(window.uri)}"{age}>')
            lines += [_TAG.sub(r"\1\\", window.text), f"</window-{code}>"]
        lines += [f"</desktop-{code}>"] if its_windows else []
    return "\n".join(lines)


class FinderFilter(TypedDict, total=False):
    """Which documents of a Computer."""

    keywords: Iterable[str] | None
    """Documents that hold any of them in title, keywords or summary; None, or none: all."""
    file_type: str | None
    """Documents of exactly this type (`xlsx`)."""
    offset: int
    limit: int
    """Which part of them: from 0; 1 to 100 documents."""


class ResourceMethods:
    """What `SmcpAgent` reads of Computers. Resources and prompts are as listed; our Computers add `serverId`."""

    _rpc: RpcClient
    _answers: AnswerCache
    _subscriptions: Subscriptions
    _office: Office
    _listed = 0
    """The sizes (`size_of`) of all lists that are being read."""

    async def get_desktop(self, computer: str, *, size: int | None = None, window: str | None = None) -> JsonObject:
        """A Computer's desktop, asked of it now: the protocol's GetDeskTopRet.

        `desktops` has one text for each window, in the Computer's order: its URI, then, where it has text, an empty
        line and the text. `a2c_missing` says how many windows could not be read, `a2c_ages` how long ago each was read
        (seconds) where an MCP server is slow. `size`: at most so many windows; `window`: only the one with this URI.
        Raises SmcpError: as `call_tool`.
        """
        query = self._rpc.query("client:get_desktop", computer, desktop_size=size, window=window)
        reply: schemas.GetDeskTopRet = await query
        return reply.model_dump(exclude_none=True)

    async def desktop(self, computer: str, *, max_age: float | None = MAX_AGE_S) -> JsonObject:
        """As `get_desktop`, from the cache where nothing changed since, nothing was missing (`a2c_missing`), and it was
        asked for at most `max_age` seconds ago (None: whenever; for MCP servers that announce every change)."""
        return await self._answers.get(
            Query("desktop", computer),
            lambda: self.get_desktop(computer),
            keep=lambda found: not (found.get("a2c_missing") or found.get("a2c_ages")),
            max_age=max_age,
        )

    async def desktop_prompt(self, computer: str | None = None, *, max_age: float | None = MAX_AGE_S) -> str:
        """The desktop of a Computer, or those of all that can be fetched, as `prompt_text` writes them; `max_age` as of
        `desktop`.

        Raises SmcpError: as `desktop`, where a Computer was named.
        """
        if computer is not None:
            return prompt_text({computer: await self.desktop(computer, max_age=max_age)})
        names = self._office.room.computers
        found = await asyncio.gather(*(self._desktop_or_none(name, max_age) for name in names))
        return prompt_text({name: desktop for name, desktop in zip(names, found, strict=True) if desktop is not None})

    async def _desktop_or_none(self, computer: str, max_age: float | None) -> JsonObject | None:
        try:
            return await self.desktop(computer, max_age=max_age)
        except SmcpError as error:
            logger.warning("no desktop of Computer %r: error %d: %s", computer, error.code, error.message)
            return None

    async def get_finder(self, computer: str, **filters: Unpack[FinderFilter]) -> JsonObject:
        """A part of a Computer's documents, asked of it now: the protocol's GetFinderRet, with `documents`
        (DPEDocumentSummary), `total_count` before `offset` and `limit`, and `a2c_as_listed`, how many documents'
        metadata the Computer does not know now: some may be missing. Raises SmcpError: as `call_tool`."""
        reply: schemas.GetFinderRet = await self._rpc.query("client:get_finder", computer, **_fields(**filters))
        return reply.model_dump(exclude_unset=True)

    async def finder(self, computer: str, **filters: Unpack[FinderFilter]) -> JsonObject:
        """As `get_finder`, from the cache where nothing changed since and nothing was missing (`a2c_as_listed`)."""
        wanted = _fields(**filters)
        return await self._answers.get(
            Query("finder", computer, repr(wanted)),
            lambda: self.get_finder(computer, **wanted),
            keep=lambda found: not found.get("a2c_as_listed"),
        )

    async def read_resource(self, computer: str, uri: str, *, server: str | None = None) -> Any:
        """A resource's content, asked for now: the parsed JSON of a document (`dpe://…`), whose models are in
        `smcp_proto.schemas` (`DPEDocument`, `DPEPage`, `DPEElementDetail`); other text; `bytes` of what is binary.

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
        answered = await self._rpc.ask_mcp("client:resources/read", {"uri": uri}, computer=computer, server=server)
        return resource_contents(uri, answered.result, f"the content of {uri} that {answered.sender} sent")

    async def list_resources(
        self, computer: str | None = None, *, server: str | None = None, cursor: str | None = None
    ) -> JsonObject:
        """One page of resources, asked for now: `resources`; `nextCursor` if there are more; `computer`, whose they
        are; and `meta` if something could not be listed (see `SKIPPED`). Raises SmcpError: as `read_resource`.

        `computer`: None: those of all Computers, one after the other; `server`: only those of this MCP server.
        """
        return await self._list_page("resources", computer, server, cursor)

    def iter_resources(self, computer: str | None = None, *, server: str | None = None) -> AsyncIterator[JsonObject]:
        """All resources, one page after the other, for `async for`. As `list_resources`."""
        return self._items("resources", computer, server)

    async def resources(self, computer: str | None = None, *, server: str | None = None) -> tuple[JsonObject, ...]:
        """All resources, from the cache where nothing changed since and the list was complete. As `list_resources`."""

        async def ask() -> list[JsonObject]:
            return [page async for page in self._pages("resources", computer, server)]

        pages = await self._answers.get(
            Query("resources", computer, server),
            ask,
            keep=lambda pages: (
                not any(
                    meta.get(key) for page in pages if isinstance(meta := page.get("meta"), dict) for key in SKIPPED
                )
            ),
        )
        return tuple(each for page in pages for each in page["resources"])

    async def list_resource_templates(
        self, computer: str | None = None, *, server: str | None = None, cursor: str | None = None
    ) -> JsonObject:
        """One page of `resourceTemplates`. As `list_resources`."""
        return await self._list_page("resourceTemplates", computer, server, cursor)

    def iter_resource_templates(
        self, computer: str | None = None, *, server: str | None = None
    ) -> AsyncIterator[JsonObject]:
        """All templates, for `async for`. As `list_resources`."""
        return self._items("resourceTemplates", computer, server)

    async def complete(
        self,
        computer: str,
        template: str,
        argument: str,
        value: str = "",
        *,
        chosen: Mapping[str, str] | None = None,
        server: str | None = None,
    ) -> JsonObject:
        """What an argument of a template may be (finder.txt, completion): MCP's `values`, `total` and `hasMore`.

        `template`: a `uriTemplate`; `argument`: one of its arguments, which begins with `value`; `chosen`: the other
        arguments, as far as they are chosen. Raises SmcpError: as `read_resource`.
        """
        params = {"ref": {"type": "ref/resource", "uri": template}, "argument": {"name": argument, "value": value}}
        return await self._complete(computer, params, chosen, server)

    async def subscribe_resource(self, computer: str, uri: str, *, server: str | None = None) -> None:
        """Receive changes of a resource as `ResourceUpdated` events, until `unsubscribe_resource`. Raises McpError:
        `smcp_code` is SMCP_SUBSCRIPTION_NOT_SUPPORTED where the MCP server cannot tell; SmcpError: as `read_resource`.
        """
        await self._subscriptions.add(Subscription(computer, uri, server))

    async def unsubscribe_resource(self, computer: str, uri: str, *, server: str | None = None) -> None:
        """End what `subscribe_resource` began with the same arguments, also where SmcpError is raised."""
        await self._subscriptions.remove(Subscription(computer, uri, server))

    def subscriptions(self) -> tuple[Subscription, ...]:
        """The subscriptions."""
        return self._subscriptions.all()

    async def _send_subscription(self, verb: Literal["subscribe", "unsubscribe"], wanted: Subscription) -> None:
        params, event = {"uri": wanted.uri}, f"client:resources/{verb}"
        await self._rpc.ask_mcp(event, params, computer=wanted.computer, server=wanted.server)

    async def _list_page(self, key: str, computer: str | None, server: str | None, cursor: str | None) -> JsonObject:
        what, event, model = _LISTS[key]
        params = {} if cursor is None else {"cursor": cursor}
        answered = await self._rpc.ask_mcp(event, params, computer=computer, server=server)
        found = reply_of(model, answered.result, f"the list of {what} that {answered.sender} sent")
        page = found.model_dump(exclude_unset=True)
        if lost := len(answered.result[key]) - len(page[key]):  # a list over the office is that of other Computers, too
            logger.warning("%d %s of %s are malformed, and left out", lost, what, answered.sender)
        return page if answered.computer is None else {**page, "computer": answered.computer}

    async def _pages(self, key: str, computer: str | None, server: str | None) -> AsyncIterator[JsonObject]:
        """One page after the other. Raises BadReply where a cursor leads back to an earlier one; TooLarge."""
        cursor: str | None = None
        seen: set[str | None] = set()
        sizes = Counter[str | None]()
        try:
            while cursor not in seen:
                seen.add(cursor)
                page = await self._list_page(key, computer, server, cursor)
                size = max(LEAST_PAGE, LEAST_ITEM * len(page[key]), size_of(page))
                sizes[page.get("computer")] += size
                self._listed += size
                if max(sizes.values()) > MAX_LIST or self._listed > MAX_CACHED_BYTES:
                    raise TooLarge(
                        f"the list takes over {MAX_LIST} bytes, or all lists at a time over {MAX_CACHED_BYTES}"
                    )
                yield page
                if (cursor := page.get("nextCursor")) is None:
                    return
        finally:
            self._listed -= sizes.total()
        raise BadReply("the list does not end: a page's cursor leads back to an earlier one")

    async def _items(self, key: str, computer: str | None, server: str | None) -> AsyncIterator[JsonObject]:
        async for page in self._pages(key, computer, server):
            for each in page[key]:
                yield each

    def iter_prompts(self, computer: str, *, server: str | None = None) -> AsyncIterator[JsonObject]:
        """All prompts, asked for now, for `async for`: MCP's, each with its `serverId`. Arguments and errors: as
        `list_resources`."""
        return self._items("prompts", computer, server)

    async def get_prompt(
        self, computer: str, name: str, arguments: Mapping[str, str] | None = None, *, server: str | None = None
    ) -> JsonObject:
        """MCP's GetPromptResult: the `messages` of a prompt with its `arguments` (texts by name) filled in. `server`:
        its MCP server; None: the Computer finds one that has it. Raises SmcpError: as `read_resource`."""
        params: JsonObject = {"name": name}
        if given := mapping_of("arguments", arguments):
            params["arguments"] = given
        answered = await self._rpc.ask_mcp("client:prompts/get", params, computer=computer, server=server)
        reply_of(schemas.GetPromptResult, answered.result, f"the prompt {name!r} that {answered.sender} sent")
        return answered.result

    async def complete_prompt(
        self,
        computer: str,
        name: str,
        argument: str,
        value: str = "",
        *,
        chosen: Mapping[str, str] | None = None,
        server: str | None = None,
    ) -> JsonObject:
        """What an argument of a prompt may be. As `complete`, with the name of a prompt in place of a template."""
        params = {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": argument, "value": value}}
        return await self._complete(computer, params, chosen, server)

    async def _complete(
        self, computer: str, params: JsonObject, chosen: Mapping[str, str] | None, server: str | None
    ) -> JsonObject:
        if others := mapping_of("chosen", chosen):
            params["context"] = {"arguments": others}
        answered = await self._rpc.ask_mcp("client:completion/complete", params, computer=computer, server=server)
        what = f"the completion of {params['argument']['name']!r} that {answered.sender} sent"
        reply_of(schemas.CompleteResult, answered.result, what)
        completion: JsonObject = answered.result["completion"]
        return completion


def _fields(
    keywords: Iterable[str] | None = None,
    file_type: str | None = None,
    offset: int = schemas.DEFAULT_OFFSET,
    limit: int = schemas.DEFAULT_LIMIT,
) -> JsonObject:
    if isinstance(keywords, str):  # else each of its letters would be a keyword
        keywords = (keywords,)
    words = None if keywords is None else list(keywords)
    return {"keywords": words, "file_type": file_type, "offset": offset, "limit": limit}


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("\n", " ")
