"""The documents of one MCP server: which it lists, and what is known of each."""

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from smcp_computer.finder.metadata import from_listing
from smcp_proto.documents import Document
from smcp_proto.uris import parse_dpe_uri

Resource = Mapping[str, Any]
Listing = Mapping[str, Resource]
"""What a server lists: by URI, in its order, each as the server sent it."""


@dataclass(slots=True, eq=False)
class Entry:
    """One document that the server lists."""

    uri: str
    resource: Resource
    listed: Document
    """As far as the list describes it."""
    document: Document | None = None
    """With its metadata, once they are read."""
    size: int = 0
    """Bytes of its metadata, where they are kept."""
    version: int = 0
    """Grows with each change: metadata that were asked for before it are not kept."""
    asked: bool = False
    asked_at: float = 0.0
    """When it was asked for last (loop time, seconds)."""
    left_out: bool = False
    """It cannot be read, so it is not in the catalog."""
    retry_at: float | None = None
    """It did not come; it is asked for again from then on (loop time, seconds)."""
    warned: str = ""
    """What was logged of it last."""

    def forget(self) -> int:
        """Something changed: its metadata are read anew. Returns how many bytes of them were kept."""
        freed = self.size
        self.document, self.size, self.left_out, self.retry_at = None, 0, False, None
        self.version += 1
        self.asked = False
        return freed

    def missing(self) -> bool:
        """Whether it was never asked for since it changed."""
        return self.document is None and self.retry_at is None and not self.asked

    def due(self, now: float) -> bool:
        """Whether it did not come, and is to be asked for again."""
        return self.document is None and self.retry_at is not None and self.retry_at <= now and not self.asked


@dataclass(slots=True, eq=False)
class Shelf:
    """Args:
    server: its name.
    """

    server: str
    listing: Listing | None = None
    """What `entries` were made of."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """By URI, in the order of the list."""
    of_document: dict[str, dict[str, list[Entry]]] = field(default_factory=dict)
    """The same by host and document: a server may tell of very many changes, and have very many documents."""
    skipped: dict[str, str] = field(default_factory=dict)
    """`dpe://` URIs of the list that are no documents, with why; for the log."""
    first: deque[Entry] = field(default_factory=deque)
    """To be asked for; those who ask for the catalog wait for them."""
    again: deque[Entry] = field(default_factory=deque)
    """To be asked for once more; nobody waits."""
    readers: set["asyncio.Task[None]"] = field(default_factory=set)
    """What asks for those of `first` now."""
    again_reader: "asyncio.Task[None] | None" = None
    """What asks for those of `again`."""
    unplanned: bool = False
    """Whether something changed since `plan`, for those who wait."""
    alone: bool = False
    """Whether the one read goes on that waits for no other server."""
    silent: int = 0
    """How often in a row the server did not answer."""
    put_off_until: float = 0.0
    """Loop time (seconds) before which the server is asked for nothing, since it does not answer."""

    def fill(self, listing: Listing) -> int:
        """Take over a new list. What is listed as before keeps its metadata. Returns the bytes that were let go."""
        entries: dict[str, Entry] = {}
        self.skipped = {}
        for uri, resource in listing.items():
            if uri[:4].lower() != "dpe:":
                continue
            known = self.entries.get(uri)
            if known is not None and known.resource == resource:
                entries[uri] = known
            else:
                listed, why = from_listing(self.server, uri, resource)
                if listed is not None:
                    entries[uri] = Entry(uri, resource, listed)
                else:
                    self.skipped[uri] = why
        freed = sum(entry.forget() for uri, entry in self.entries.items() if entries.get(uri) is not entry)
        self.listing, self.entries = listing, entries
        self.of_document = {}
        for entry in entries.values():
            of_host = self.of_document.setdefault(entry.listed.uri.host, {})
            of_host.setdefault(entry.listed.uri.doc_ref or "", []).append(entry)
        return freed

    def forget(self, uri: str | None = None) -> int:
        """Have the documents that a URI of any level concerns read anew; None: all. Returns the bytes let go."""
        self.silent, self.put_off_until = 0, 0.0
        return sum(entry.forget() for entry in self._concerned(uri))

    def expire(self, before: float, told: Collection[str]) -> int:
        """Have those read anew that were asked for before a loop time (seconds), and whose changes are not told.

        Args:
            told: the URIs of whose changes the server tells.

        Returns the bytes let go.
        """
        old = (
            entry
            for uri, entry in self.entries.items()
            if entry.document is not None and entry.asked_at <= before and uri not in told
        )
        return sum(entry.forget() for entry in old)

    def plan(self, now: float) -> None:
        """Find what is to be asked for."""
        self.unplanned = False
        self.first = deque(entry for entry in self.entries.values() if entry.missing())
        self.again = deque(entry for entry in self.entries.values() if entry.due(now))

    def documents(self) -> Iterator[Document]:
        """What the catalog shows of this server."""
        for entry in self.entries.values():
            if not entry.left_out:
                yield entry.document or entry.listed

    def _concerned(self, uri: str | None) -> list[Entry]:
        if uri is None:
            return list(self.entries.values())
        try:
            changed = parse_dpe_uri(uri)
        except ValueError:
            return []
        of_host = self.of_document.get(changed.host, {})
        if changed.doc_ref is not None:
            return of_host.get(changed.doc_ref, [])
        return [entry for entries in of_host.values() for entry in entries]
