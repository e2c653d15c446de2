"""`client:get_finder`: one page of the catalog of all documents (finder.txt, Finder Organizer), and the metadata of the
documents of all MCP servers: one cache, filled by requests for the catalog (ADR 0020).

A notification, a new subscription or a restart of a server makes the documents concerned unread; the next request reads
them again. Nothing is read without a request. A document without usable metadata is shown as `resources/list` describes
it.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from smcp_bus import exact_json
from smcp_bus.dispatch import Answer, Call
from smcp_computer.access import Access
from smcp_computer.mcp import errors
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.resources import AT_ONCE, ONE_OF_MANY_S
from smcp_computer.resources.index import MAX_BYTES, Listing
from smcp_computer.resources.routing import Budget
from smcp_computer.tools import History
from smcp_proto.errors import Malformed
from smcp_proto.finder import Document, organize_finder
from smcp_proto.schemas.finder import GetFinderReq
from smcp_proto.uris import DpeUri, parse_dpe_uri
from smcp_proto.validation import mended
from smcp_service.lifecycle import Background

CACHE_BYTES: Final = 64 * 1024 * 1024
"""The limit on the metadata of all documents. Documents above it are searched, ordered and shown as listed."""
UNSUBSCRIBED_S: Final = 5.0
"""How long an answer counts where the server announces no changes: long enough for an Agent that turns pages."""

Read = Callable[[str, str, float], Awaitable[Mapping[str, Any]]]
"""Reads a resource: server, URI, seconds. Raises ServerError. The result is as the server sent it."""


@dataclass(slots=True, eq=False)
class _Entry:
    """The metadata of a document since its last change. A change drops the entry: answers to earlier reads are thrown
    away. Where its server did not answer, the next request reads it again."""

    reading: "asyncio.Task[None]" = field(init=False)
    answered_at: float | None = None
    """Loop time of the server's answer, whether it can be used or not."""
    read: Document | None = None
    size: int = 0
    is_refused: bool = False
    """Its server refuses it: it is not in the catalog."""


@dataclass(eq=False)
class MetadataCache:
    """`subscribed` gives the URIs whose updates a server sends. Reads outlive their requests in `tasks`."""

    _read: Read
    _tasks: Background
    _subscribed: Callable[[str], Collection[str]]
    _events: ServerEvents
    kept_bytes: int = field(default=0, init=False)
    not_kept: int = field(default=0, init=False)
    """How often there was no room for metadata that were read."""
    _entries: dict[str, dict[DpeUri, _Entry]] = field(default_factory=dict, init=False)
    """By server."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)

    async def documents(self, lists: Mapping[str, Listing], *, timeout: float) -> tuple[list[Document], int]:
        """All documents of the given servers, each server's in the order of its list; and of how many the metadata are
        not known. `timeout`: seconds that metadata are waited for.
        """
        for server, listing in lists.items():
            self._expire(server, listing)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(self._read_missing(server, listing) for server, listing in lists.items()))
        found, as_listed = list[Document](), 0
        for server, listing in lists.items():
            entries = self._entries[server]
            for document, (_, listed) in listing.documents.items():
                entry = entries.get(document)
                if entry is None or not entry.is_refused:
                    found.append((entry and entry.read) or listed)
                    as_listed += entry is None or entry.read is None
        return found, as_listed

    def changed(self, server: str, uri: str | None = None) -> None:
        """A resource of a server changed, or may have; None: any of them."""
        entries = self._entries.get(server, {})
        if uri is None:
            self._forget(entries, list(entries))
            return
        with suppress(ValueError):
            changed = parse_dpe_uri(uri)
            if changed.doc_ref is None:
                self._forget(entries, [document for document in entries if document.host == changed.host])
            else:
                self._forget(entries, {DpeUri(changed.host, changed.doc_ref)} & entries.keys())

    def _forget(self, entries: dict[DpeUri, _Entry], documents: Iterable[DpeUri]) -> None:
        self.kept_bytes -= sum(entries.pop(document).size for document in documents)

    def _expire(self, server: str, listing: Listing) -> None:
        entries = self._entries.setdefault(server, {})
        subscribed, oldest = self._subscribed(server), self._loop.time() - UNSUBSCRIBED_S

        def is_over(document: DpeUri, entry: _Entry) -> bool:
            if document not in listing.documents:
                return True
            if entry.answered_at is None:
                return entry.reading.done()
            return entry.answered_at <= oldest and listing.documents[document][0] not in subscribed

        self._forget(entries, [document for document, entry in entries.items() if is_over(document, entry)])

    async def _read_missing(self, server: str, listing: Listing) -> None:
        entries = self._entries[server]

        def is_read(document: DpeUri) -> bool:
            return document in entries and entries[document].reading.done()

        # once more where something changed meanwhile
        while missing := list(itertools.filterfalse(is_read, listing.documents)):
            waiting = iter(missing)
            await asyncio.gather(*(self._read_each(server, listing, waiting) for _ in range(AT_ONCE)))

    async def _read_each(self, server: str, listing: Listing, waiting: Iterator[DpeUri]) -> None:
        entries = self._entries[server]
        for document in waiting:
            if (entry := entries.get(document)) is None:
                entry = entries[document] = _Entry()
                work = self._read_one(server, document, listing.documents[document][0], entry)
                entry.reading = self._tasks.start(work, name=f"finder:{server}")
            await asyncio.wait([entry.reading])  # cancelling a request does not end the read

    async def _read_one(self, server: str, document: DpeUri, uri: str, entry: _Entry) -> None:
        read, size, why = None, 0, ""
        try:
            result = await self._read(server, uri, ONE_OF_MANY_S)
            read, warnings, size = from_contents(server, uri, result)
            why = "; ".join(warnings)
        except (errors.ServerTimedOut, errors.ServerNotRunning, errors.ServerDied) as error:
            self._events.warn(server, f"documents are shown as they are listed: it {error.what}")
            return
        except (errors.AnswerTooLarge, errors.BadAnswer) as error:
            why = f"{error.what}; it is shown as it is listed"
        except errors.ServerError as error:
            entry.is_refused, why = True, f"{error.what}; it is left out"
        if self._entries[server].get(document) is not entry:
            return  # it changed meanwhile
        entry.answered_at = self._loop.time()
        if self.kept_bytes + size > CACHE_BYTES:
            self.not_kept += 1
            most = f"there are more than {CACHE_BYTES} bytes of metadata"
            self._events.warn(server, f"documents are shown as they are listed: {most}")
        elif read is not None:
            entry.read, entry.size = read, size
            self.kept_bytes += size
        if why:
            self._events.warn(server, f"the document {self._events.shown(uri)!r}: {why}")


def from_contents(server: str, uri: str, result: Mapping[str, Any]) -> tuple[Document, list[str], int]:
    """The document that a `resources/read` of level 1 describes, with warnings and the size of its metadata in bytes.
    The MIME type is ignored. Raises BadAnswer.
    """
    text = first_text(result)
    if text is None:
        raise errors.BadAnswer(server, "sent contents without text")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise errors.BadAnswer(server, f"sent metadata of {size} bytes, more than {MAX_BYTES}")
    try:
        summary = exact_json.read(mended(text).encode())
        exact_json.check_depth({"metadata": summary})
    except (ValueError, Malformed):
        raise errors.BadAnswer(server, "sent metadata that are not JSON, or nested too deeply") from None
    document, warnings = Document.of(server, summary, listed=uri)
    if document is None:
        raise errors.BadAnswer(server, f"sent other metadata: {'; '.join(warnings)}")
    return document, warnings, size


def first_text(result: Mapping[str, Any]) -> str | None:
    contents = result.get("contents")
    for content in contents if isinstance(contents, list) else ():
        if isinstance(content, Mapping) and isinstance(content.get("text"), str):
            return str(content["text"])
    return None


@dataclass(eq=False)
class Finder:
    """Waits at most `wait_s` for metadata that are not read yet."""

    cache: MetadataCache
    lists: Callable[[float], Awaitable[Mapping[str, Listing]]]
    """What each server that takes part lists now; given the seconds that there are for finding that out."""
    history: History
    access: Access
    _: KW_ONLY
    wait_s: float

    async def __call__(self, request: GetFinderReq, call: Call) -> Answer:
        """One page."""
        budget = Budget(call, most=self.wait_s)
        hidden = self.access.hidden(call.caller)
        listed = await self.lists(budget.left / 2)
        lists = {server: listing for server, listing in listed.items() if server not in hidden}
        documents, as_listed = await self.cache.documents(lists, timeout=budget.left)
        found = organize_finder(
            documents,
            request.keywords,
            request.file_type,
            self.history.servers,
            offset=request.offset,
            limit=request.limit,
        )
        rest = {"total_count": found.total_count, "req_id": request.req_id}
        if as_listed:
            rest["a2c_as_listed"] = as_listed  # found may lack them, or have them elsewhere
        return Answer(exact_json.written({"documents": found.documents, **rest}))
