"""`client:get_finder`: one page of the catalog of all documents (finder.txt, Finder Organizer), and the metadata of the
documents of all MCP servers: one cache, filled by requests for the catalog (ADR 0020).

A notification, a new subscription or a restart of a server makes the documents concerned unread; the next request reads
them again. Nothing is read without a request. A document without usable metadata is shown as `resources/list` describes
it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from smcp_bus import exact_json
from smcp_bus.dispatch import Call, RawJson
from smcp_computer.access import Access
from smcp_computer.mcp.errors import (
    AnswerTooLarge,
    BadAnswer,
    ServerDied,
    ServerError,
    ServerNotRunning,
    ServerTimedOut,
    bad_field,
)
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.resources import AT_ONCE, ONE_OF_MANY_S
from smcp_computer.resources.routing import Budget
from smcp_computer.tools import History
from smcp_proto.errors import Malformed
from smcp_proto.finder import Document, organize_finder
from smcp_proto.schemas.finder import GetFinderReq
from smcp_proto.uris import DpeUri, parse_dpe_uri
from smcp_proto.validation import mended
from smcp_service.lifecycle import Background

MAX_BYTES: Final = 32 * 1024
"""The limit on one document's metadata: 100 of them have to fit into one message of a small client (4 MiB)."""
CACHE_BYTES: Final = 64 * 1024 * 1024
"""The limit on the metadata of all documents. Documents above it are searched, ordered and shown as listed."""
UNSUBSCRIBED_S: Final = 5.0
"""How long an answer counts where the server announces no changes: long enough for an Agent that turns pages."""

Listing = Mapping[str, Mapping[str, Any]]
"""Resources by URI."""
Read = Callable[[str, str, float], Awaitable[Mapping[str, Any]]]
"""Reads a resource: server, URI, seconds. Raises ServerError. The result is as the server sent it."""


class Unreadable(Exception):
    """The metadata cannot be used. The message says why, for the log, and holds nothing that the server sent."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A document since its last change. A change replaces the entry: answers to earlier reads are thrown away."""

    uri: str
    resource: Mapping[str, Any]
    listed: Document
    answered_at: float | None = None
    """Loop time of the server's answer, whether it can be used or not. None: unread."""
    read: Document | None = None
    size: int = 0
    is_refused: bool = False
    """Its server refuses it: it is not in the catalog."""
    reading: "asyncio.Task[None] | None" = None

    @property
    def failed(self) -> bool:
        """Whether its server did not answer. The next request reads it again."""
        return self.answered_at is None and self.reading is not None and self.reading.done()


@dataclass(slots=True, eq=False)
class _Server:
    name: str
    listing: Listing | None = None
    entries: dict[DpeUri, _Entry] = field(default_factory=dict)
    """By host and document, in the order of the list; of two URIs of one document the first counts."""
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def missing(self) -> list[_Entry]:
        return [entry for entry in self.entries.values() if entry.answered_at is None and not entry.failed]

    def concerned(self, uri: str | None) -> list[_Entry]:
        if uri is None:
            return list(self.entries.values())
        try:
            changed = parse_dpe_uri(uri)
        except ValueError:
            return []
        if changed.doc_ref is None:
            return [entry for document, entry in self.entries.items() if document.host == changed.host]
        entry = self.entries.get(DpeUri(changed.host, changed.doc_ref))
        return [] if entry is None else [entry]


class MetadataCache:
    """`subscribed` gives the URIs whose updates a server sends. Reads outlive their requests in `tasks`."""

    def __init__(
        self,
        read: Read,
        tasks: Background,
        subscribed: Callable[[str], Collection[str]],
        events: ServerEvents,
    ) -> None:
        self._read = read
        self._subscribed = subscribed
        self._tasks = tasks
        self.kept_bytes = 0
        self.not_kept = 0
        """How often there was no room for metadata that were read."""
        self._events = events
        self._servers: dict[str, _Server] = {}
        self._loop = asyncio.get_running_loop()

    async def documents(self, lists: Mapping[str, Listing], *, timeout: float) -> list[Document]:
        """All documents of the given servers, each server's in the order of its list. The same list object again means
        that nothing changed. `timeout`: seconds that metadata are waited for.
        """
        for name in self._servers.keys() - lists.keys():
            self.removed(name)
        for name, listing in lists.items():
            server = self._servers.setdefault(name, _Server(name))
            if server.listing is not listing:
                self._fill(server, listing)
        servers = [self._servers[name] for name in lists]
        for server in servers:
            self._expire(server)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*map(self._read_missing, servers))
        return [entry.read or entry.listed for entry in self._shown(lists)]

    def as_listed(self, servers: Collection[str]) -> int:
        """How many documents of these servers are shown without their metadata."""
        return sum(entry.read is None for entry in self._shown(servers))

    def changed(self, server: str, uri: str | None = None) -> None:
        """A resource of a server changed, or may have; None: any of them."""
        if (known := self._servers.get(server)) is not None:
            self._forget(known, known.concerned(uri))

    def removed(self, server: str) -> None:
        if (known := self._servers.pop(server, None)) is not None:
            self._fill(known, {})

    def _shown(self, servers: Collection[str]) -> Iterator[_Entry]:
        for server in servers:
            if (known := self._servers.get(server)) is not None:
                yield from (entry for entry in known.entries.values() if not entry.is_refused)

    def _fill(self, server: _Server, listing: Listing) -> None:
        """Take over a new list. What is listed as before keeps its metadata."""
        before = {entry.uri: entry for entry in server.entries.values()}
        server.listing, server.entries = listing, {}
        for uri, resource in listing.items():
            if uri[:4].lower() != "dpe:":
                continue
            known = before.get(uri)
            if known is None or known.resource != resource:
                listed, why = from_listing(server.name, uri, resource)
                if listed is None:
                    self._events.warn(server.name, f"lists {self._events.shown(uri)!r} as a document: {why}")
                    continue
                known = _Entry(uri, resource, listed)
            server.entries.setdefault(known.listed.uri, known)
        for entry in before.values():
            if server.entries.get(entry.listed.uri) is not entry:
                self.kept_bytes -= entry.size

    def _forget(self, server: _Server, entries: Iterable[_Entry]) -> None:
        for old in entries:
            self.kept_bytes -= old.size
            server.entries[old.listed.uri] = _Entry(old.uri, old.resource, old.listed)

    def _expire(self, server: _Server) -> None:
        """Forget what failed, and what is too old without updates."""
        subscribed, oldest = self._subscribed(server.name), self._loop.time() - UNSUBSCRIBED_S
        over = [
            entry
            for entry in server.entries.values()
            if entry.failed
            or (entry.answered_at is not None and entry.answered_at <= oldest and entry.uri not in subscribed)
        ]
        self._forget(server, over)

    async def _read_missing(self, server: _Server) -> None:
        while missing := server.missing():  # once more where something changed while it was read
            waiting = iter(missing)
            await asyncio.gather(*(self._read_each(server, waiting) for _ in range(AT_ONCE)))

    async def _read_each(self, server: _Server, waiting: Iterator[_Entry]) -> None:
        for entry in waiting:
            if server.entries.get(entry.listed.uri) is not entry:
                continue
            if entry.reading is None:
                entry.reading = self._tasks.start(self._read_one(server, entry), name=f"finder:{server.name}")
            await asyncio.wait([entry.reading])  # cancelling a request does not end the read

    async def _read_one(self, server: _Server, entry: _Entry) -> None:
        document, size, why = None, 0, ""
        try:
            async with server.turns:
                result = await self._read(server.name, entry.uri, ONE_OF_MANY_S)
            document, warnings, size = from_contents(server.name, entry.uri, result)
            why = "; ".join(warnings)
        except (ServerTimedOut, ServerNotRunning, ServerDied) as error:
            self._events.warn(server.name, f"documents are shown as they are listed: it {error.what}")
            return
        except (Unreadable, AnswerTooLarge, BadAnswer) as error:
            why = f"{error}; it is shown as it is listed"
        except ServerError as error:
            entry.is_refused, why = True, f"{error}; it is left out"
        if server.entries.get(entry.listed.uri) is not entry:
            return  # it changed meanwhile
        entry.answered_at = self._loop.time()
        if self.kept_bytes + size > CACHE_BYTES:
            self.not_kept += 1
            most = f"there are more than {CACHE_BYTES} bytes of metadata"
            self._events.warn(server.name, f"documents are shown as they are listed: {most}")
        elif document is not None:
            entry.read, entry.size = document, size
            self.kept_bytes += size
        if why:
            self._events.warn(server.name, f"the document {self._events.shown(entry.uri)!r}: {why}")


def from_contents(server: str, uri: str, result: Mapping[str, Any]) -> tuple[Document, list[str], int]:
    """The document that a `resources/read` of level 1 describes, with warnings and the size of its metadata in bytes.
    The MIME type says nothing here: what counts is that there is JSON. Raises Unreadable.
    """
    text = first_text(result)
    if text is None:
        raise Unreadable("its contents have no text")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise Unreadable(f"its metadata have {size} bytes, more than {MAX_BYTES}")
    try:
        summary = _parsed(text)
    except ValueError:
        raise Unreadable("its metadata are not JSON") from None
    if isinstance(summary, dict):
        try:
            exact_json.check_depth(summary)
        except Malformed:
            raise Unreadable("its metadata are nested too deep") from None
    document, warnings = Document.of(server, summary, listed=uri)
    if document is None:
        raise Unreadable("; ".join(warnings))
    return document, warnings, size


def from_listing(server: str, uri: str, resource: Mapping[str, Any]) -> tuple[Document | None, str]:
    """The document as far as `resources/list` describes it; None where it is none, with why."""
    title = resource.get("title") or resource.get("name")
    annotations = resource.get("annotations")
    modified = annotations.get("lastModified") if isinstance(annotations, Mapping) else None
    listed = {"title": title, "summary": resource.get("description"), "last_modified": modified}
    short = {name: text for name, text in listed.items() if isinstance(text, str) and len(text) <= MAX_BYTES // 8}
    document, warnings = Document.of(server, short, listed=uri)
    return document, "; ".join(warnings)


def first_text(result: Mapping[str, Any]) -> str | None:
    contents = result.get("contents")
    for content in contents if isinstance(contents, list) else ():
        if isinstance(content, Mapping) and isinstance(content.get("text"), str):
            return str(content["text"])
    return None


def _parsed(text: str) -> Any:
    try:
        return exact_json.read(text.encode())
    except ValueError:
        return exact_json.read(mended(text).encode())


MAX_KEYWORDS: Final = 64
"""Each is looked for in every document."""
MAX_KEYWORD_LENGTH: Final = 1024
AS_LISTED: Final = "a2c_as_listed"
"""How many documents the Computer knows no metadata of now: what is answered may lack them, or have them elsewhere."""

Lists = Callable[[float], Awaitable[Mapping[str, Listing]]]
"""What each server that takes part lists now; given the seconds that there are for finding that out."""


@dataclass(eq=False)
class Finder:
    """Waits at most `wait_s` for metadata that are not read yet."""

    cache: MetadataCache
    lists: Lists
    history: History
    access: Access
    _: KW_ONLY
    wait_s: float

    async def __call__(self, request: GetFinderReq, call: Call) -> RawJson:
        """One page.

        Raises:
            Malformed: too many or too long keywords.
        """
        _check(request.keywords or ())
        budget = Budget(call, most=self.wait_s)
        lists = await self.lists(budget.left / 2)
        documents = await self.cache.documents(lists, timeout=budget.left)
        if hidden := self.access.hidden(call.caller):
            documents = [each for each in documents if each.server not in hidden]
            lists = {server: listing for server, listing in lists.items() if server not in hidden}
        found = organize_finder(
            documents,
            request.keywords,
            request.file_type,
            self.history.servers,
            offset=request.offset,
            limit=request.limit,
        )
        rest = {"total_count": found.total_count, "req_id": request.req_id}
        if as_listed := self.cache.as_listed(lists):
            rest[AS_LISTED] = as_listed
        return RawJson(exact_json.written({"documents": found.documents, **rest}))


def _check(keywords: Sequence[str]) -> None:
    if len(keywords) > MAX_KEYWORDS:
        raise bad_field("keywords", f"more than {MAX_KEYWORDS}")
    for number, keyword in enumerate(keywords):
        if len(keyword) > MAX_KEYWORD_LENGTH:
            raise bad_field(f"keywords.{number}", f"longer than {MAX_KEYWORD_LENGTH} characters")
