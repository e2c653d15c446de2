"""The documents of one MCP server: which it lists, and what is known of each."""

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from smcp_computer.finder.metadata import from_listing
from smcp_computer.finder.stock import Extent, Kept, Stock
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
    shown: Document = field(init=False)
    """As the catalog finds and orders it; with its metadata where they are kept whole."""
    kept: Kept | None = None
    """What is known of it, once its metadata are read."""
    version: int = 0
    """Grows with each change: metadata that were asked for before it are not kept."""
    asked: bool = False
    read_at: float = 0.0
    """When its metadata came (loop time, seconds)."""
    overflown: bool = False
    """Its metadata were read, and there was no room for any of them."""
    left_out: bool = False
    """It cannot be read, so it is not in the catalog."""
    retry_at: float | None = None
    """It did not come; it is asked for again from then on (loop time, seconds)."""
    owed: bool = False
    """A catalog was shown without its metadata: who asked for that is told when they are there."""
    aged: bool = False
    """It was forgotten for its age alone: whoever asks has it read, and nobody is told."""
    warned: str = ""
    """What was logged of it last."""

    def __post_init__(self) -> None:
        self.shown = self.listed

    def forget(self, stock: Stock) -> None:
        """Something changed: its metadata are read anew."""
        if self.kept is not None:
            stock.give_back(self.kept)
            stock.overflown -= self.overflown
        self.kept, self.shown, self.overflown, self.left_out, self.retry_at = None, self.listed, False, False, None
        self.owed, self.aged = False, False  # the change is told
        self.version += 1
        self.asked = False

    def has(self, extent: Extent) -> bool:
        """Whether its metadata were read, and just so much of them is kept."""
        return self.kept is not None and self.kept.extent is extent

    def came(self, kept: Kept | None, now: float, *, left_out: bool) -> bool:
        """An answer came, or none that can be used (`kept` is None). Whether that is news to who is owed it.

        What there is no room for is no news: it is shown as it is listed still, and nothing is owed of it any more.

        Args:
            now: loop time (seconds).
            left_out: its server refuses it.
        """
        # of what the index alone is kept the summary is that of the list, though more is known and shown
        says_more = kept is not None and (kept.extent is Extent.INDEX or kept.document.summary != self.listed.summary)
        is_news, self.owed = self.owed and (says_more or left_out != self.left_out), self.owed and kept is None
        self.aged = self.aged and kept is None
        self.kept, self.shown = kept, self.listed if kept is None else kept.document
        self.read_at, self.left_out = now, left_out
        return is_news

    def missing(self) -> bool:
        """Whether it was never asked for since it changed."""
        return self.kept is None and self.retry_at is None and not self.asked

    def due(self, now: float) -> bool:
        """Whether it did not come, and is to be asked for again."""
        return self.kept is None and self.retry_at is not None and self.retry_at <= now and not self.asked


@dataclass(slots=True, eq=False)
class Shelf:
    """Args:
    server: its name.
    stock: what is kept of all servers.
    """

    server: str
    stock: Stock
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
    reading: int = 0
    """How many tasks read."""
    news: bool = False
    """Whether something came since the office was told that the documents changed, that somebody is owed."""
    alone: bool = False
    """Whether the one read goes on that waits for no other server."""
    silent: int = 0
    """How often in a row the server did not answer."""
    put_off_until: float = 0.0
    """Loop time (seconds) before which the server is asked for nothing, since it does not answer."""

    def fill(self, listing: Listing) -> None:
        """Take over a new list. What is listed as before keeps its metadata."""
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
                    entries[uri] = Entry(uri, resource, listed, owed=known is not None and known.owed)
                else:
                    self.skipped[uri] = why
        for uri, entry in self.entries.items():
            if entries.get(uri) is not entry:
                entry.forget(self.stock)
        self.listing, self.entries = listing, entries
        self.of_document = {}
        for entry in entries.values():
            of_host = self.of_document.setdefault(entry.listed.uri.host, {})
            of_host.setdefault(entry.listed.uri.doc_ref or "", []).append(entry)

    def forget(self, uri: str | None = None) -> None:
        """Have the documents that a URI of any level concerns read anew; None: all."""
        self.silent, self.put_off_until = 0, 0.0
        for entry in self._concerned(uri):
            entry.forget(self.stock)

    def expire(self, before: float, told: Collection[str]) -> None:
        """Have those read anew that came before a loop time (seconds), and whose changes are not told.

        Args:
            told: the URIs of whose changes the server tells.
        """
        for uri, entry in self.entries.items():
            if entry.kept is not None and entry.read_at <= before and uri not in told:
                entry.forget(self.stock)
                entry.aged = True

    def read_what_did_not_fit(self) -> None:
        """There is room again: have those read anew of which nothing could be kept."""
        for entry in self.entries.values():
            if entry.overflown:
                entry.forget(self.stock)

    def of_index(self, document: Document) -> Entry | None:
        """The entry of a document of the catalog, where its metadata are not kept whole."""
        entries = self.of_document.get(document.uri.host, {}).get(document.uri.doc_ref or "", ())
        return next((each for each in entries if each.has(Extent.INDEX) and each.shown is document), None)

    def plan(self, now: float) -> None:
        """Find what is to be asked for."""
        self.unplanned = False
        self.first = deque(entry for entry in self.entries.values() if entry.missing())
        self.again = deque(entry for entry in self.entries.values() if entry.due(now))

    def owe(self) -> bool:
        """A catalog is shown with what is known now. Whether something is missing in it."""
        missing = [entry for entry in self.entries.values() if entry.kept is None and not entry.aged]
        for entry in missing:
            entry.owed = True
        return bool(missing)

    def owes(self) -> bool:
        """Whether a catalog lacked something that has not come since."""
        return any(entry.owed for entry in self.entries.values())

    def documents(self) -> Iterator[Document]:
        """What the catalog shows of this server."""
        for entry in self.entries.values():
            if not entry.left_out:
                yield entry.shown

    def as_listed(self) -> int:
        """How many of them are found, ordered and shown as the list describes them."""
        return sum(not entry.left_out and entry.shown is entry.listed for entry in self.entries.values())

    def overflown(self) -> int:
        """Of how many nothing could be kept."""
        return sum(entry.overflown for entry in self.entries.values()) if self.stock.overflown else 0

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
