"""The documents of all MCP servers of a Computer, with what is known of each (finder.txt, 更新机制).

Metadata are read when somebody asks for the catalog, and kept until a notification says that they changed; where the
server tells of no changes of a document, for `UNTOLD_S`. The first
time many have to be read: that is done side by side, bounded in number and in time, and goes on while nobody waits.
What is not there in time, or cannot be used, is shown as `resources/list` describes it: the page skips documents with
invalid URIs alone (finder.txt, Finder Organizer, step 1). What its server refuses to give is left out. Of what does not
fit the index is kept, so that the catalog is right all the same, and the rest is read where it is shown.
What was missing in a catalog is asked for again, and told once it is there.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from smcp_computer.finder.at_need import AtNeed, Read
from smcp_computer.finder.catching_up import CatchingUp
from smcp_computer.finder.metadata import TooMuch, Unreadable, from_contents
from smcp_computer.finder.overflow import Overflow
from smcp_computer.finder.shelf import Entry, Listing, Shelf
from smcp_computer.finder.stock import Extent, Kept, Stock
from smcp_computer.mcp.errors import (
    AnswerTooLarge,
    BadAnswer,
    ServerDied,
    ServerError,
    ServerNotRunning,
    ServerTimedOut,
)
from smcp_computer.resources.causes import Causes
from smcp_proto.documents import Document
from smcp_service.lifecycle import Background

_log = logging.getLogger("smcp_computer.finder")

READ_S: Final = 10.0
"""How long a server may take to answer for one document."""
RETRY_S: Final = 60.0
"""What did not come is asked for again after it, unless the server says before that it changed."""
UNTOLD_S: Final = 5.0
"""How long metadata are kept of a document whose changes the server does not tell: it refused the subscription."""
SILENT: Final = 3
"""A server that did not answer so often in a row is left alone for `RETRY_S`."""
PER_SERVER: Final = 4
"""Reads at a time of one server, of documents that somebody waits for; what is tried again is read one by one."""
AS_LISTED: Final = "is shown as it is listed"
AT_ONCE: Final = 64
"""Reads at a time of all servers together, beside one of each server, so that silent servers hold up no others."""

Summary = Mapping[str, Any]


class Library:
    """Args:
    read: asks a server.
    told: the URIs of whose changes a server tells.
    tasks: where it is read, also while nobody waits.
    tell: called when there is something that a catalog lacked: once the reading of a server's documents ends. It must
        not block.
    overflow: told of how many documents there is no room.
    cache_bytes: how many bytes of metadata are kept.
    index_bytes: how many bytes of what documents are found and ordered by are kept.
    """

    def __init__(
        self,
        read: Read,
        tasks: Background,
        told: Callable[[str], Collection[str]],
        tell: Callable[[], None],
        overflow: Overflow,
        *,
        cache_bytes: int,
        index_bytes: int,
    ) -> None:
        self._read = read
        self._told = told
        self._tasks = tasks
        self._overflow = overflow
        self._stock = Stock(cache_bytes, index_bytes)
        self._at_need = AtNeed(read)
        self._catching_up = CatchingUp(tasks, tell, self._read_on)
        self._full = False
        self._causes = Causes(_log)
        self._shelves: dict[str, Shelf] = {}
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._loop = asyncio.get_running_loop()

    @property
    def kept_bytes(self) -> int:
        """Bytes of metadata that are kept now."""
        return self._stock.bytes

    @property
    def has_all_at_hand(self) -> bool:
        """Whether `whole` has nothing to read."""
        return not self._stock.partly

    async def documents(self, lists: Mapping[str, Listing], *, timeout: float) -> list[Document]:
        """All documents of the servers that are given, each server's in the order of its list.

        Args:
            lists: by server, what it lists now. The very same object again says that nothing changed.
            timeout: seconds that metadata are waited for.
        """
        self._take_over(lists)
        waited_for = {reader for server in lists for reader in self._ask(self._shelves[server])}
        if waited_for:
            await asyncio.wait(waited_for, timeout=timeout)
        shelves = self._of(lists)
        for shelf in shelves:
            self._catching_up.shown(shelf)
            self._overflow.count(shelf.server, shelf.overflown())
        return [document for shelf in shelves for document in shelf.documents()]

    def as_listed(self, servers: Collection[str]) -> int:
        """How many of the documents that these servers have now are given as `resources/list` describes them."""
        return sum(shelf.as_listed() for shelf in self._of(servers))

    async def whole(
        self, summaries: Sequence[Summary], documents: Sequence[Document], *, timeout: float
    ) -> tuple[list[Summary], int]:
        """A page of the catalog with the metadata that are not kept: they are read now.

        Args:
            summaries: of some of the documents, the very objects.
            documents: as `documents` has given them.
            timeout: seconds.

        Returns the page, and how many of it are as `resources/list` describes them, since they were not there in time.
        """
        if self.has_all_at_hand:
            return list(summaries), 0
        wanted = set(map(id, summaries))
        places: dict[int, tuple[str, str]] = {}
        for document in documents:
            if id(document.summary) in wanted and (shelf := self._shelves.get(document.server)) is not None:
                entry = shelf.of_index(document)
                if entry is not None:
                    places[id(document.summary)] = shelf.server, entry.uri
        now = self._loop.time()
        read = [place for place in places.values() if self._shelves[place[0]].put_off_until <= now]
        found = await self._at_need.summaries(read, timeout=timeout)
        page = [found.get(places[id(each)], each) if id(each) in places else each for each in summaries]
        return page, len(places) - len(found)

    def changed(self, server: str, uri: str | None = None) -> None:
        """A server says that a resource changed; None: whatever it has may have changed."""
        if (shelf := self._shelves.get(server)) is not None:
            shelf.forget(uri)
            self._plan_for_those_who_wait(shelf)

    def subscribed(self, server: str, uris: Collection[str]) -> None:
        """A server has agreed to tell of these from now on: they may have changed since they were read."""
        if (shelf := self._shelves.get(server)) is not None:
            for uri in uris:
                if uri in shelf.entries:
                    shelf.entries[uri].forget(self._stock)
            self._plan_for_those_who_wait(shelf)

    def _plan_for_those_who_wait(self, shelf: Shelf) -> None:
        """What changes while a catalog is read is read for that catalog, too."""
        shelf.unplanned = bool(shelf.readers)  # they plan it before they read on: once, however much changes

    def started(self, server: str) -> None:
        """A new life of a server: whatever it has may have changed, and what is still wrong with it is said again."""
        self._causes.forget(server)
        self._overflow.forget(server)
        self.changed(server)

    def _take_over(self, lists: Mapping[str, Listing]) -> None:
        for server in [server for server in self._shelves if server not in lists]:
            self._shelves.pop(server).fill({})
            self._catching_up.end(server)
            self._overflow.count(server, 0)
            self._overflow.forget(server)
        for server, listing in lists.items():
            shelf = self._shelves.setdefault(server, Shelf(server, self._stock))
            if shelf.listing is not listing:
                shelf.fill(listing)
                for uri, why in shelf.skipped.items():
                    self._causes.warn(server, f"lists {uri[:256]!r} as a document: {why}")

    def _ask(self, shelf: Shelf) -> set[asyncio.Task[None]]:
        """Have read what is missing of a server. Returns what reads it for the first time."""
        now = self._loop.time()
        if shelf.put_off_until > now:
            return set()
        shelf.expire(now - UNTOLD_S, self._told(shelf.server))
        if self._stock.is_roomy:
            shelf.read_what_did_not_fit()
        self._read_on(shelf)
        return set(shelf.readers)

    def _read_on(self, shelf: Shelf) -> set[asyncio.Task[None]]:
        """Ask for what is missing, and for what is to be tried again. Returns what reads it."""
        shelf.plan(self._loop.time())
        if shelf.again and (shelf.again_reader is None or shelf.again_reader.done()):
            shelf.again_reader = self._start(shelf, first=False)
        while len(shelf.readers) < min(PER_SERVER, len(shelf.first)):
            reader = self._start(shelf, first=True)
            shelf.readers.add(reader)
            reader.add_done_callback(shelf.readers.discard)
        return shelf.readers | ({shelf.again_reader} if shelf.again_reader is not None else set())

    def _start(self, shelf: Shelf, *, first: bool) -> asyncio.Task[None]:
        return self._tasks.start(self._read_all(shelf, first=first), name=f"finder:{shelf.server}")

    async def _read_all(self, shelf: Shelf, *, first: bool) -> None:
        with self._catching_up.reading(shelf):
            # what is planned while it reads is read by it, too
            while self._left(shelf, first=first) and shelf.put_off_until <= self._loop.time():
                if shelf.alone:
                    async with self._turn:
                        await self._read_next(shelf, first=first)
                    continue
                shelf.alone = True  # one read of each server waits for no other server: however many are silent
                try:
                    await self._read_next(shelf, first=first)
                finally:
                    shelf.alone = False

    def _left(self, shelf: Shelf, *, first: bool) -> deque[Entry]:
        """What is still to be asked for."""
        if shelf.unplanned:
            shelf.plan(self._loop.time())
        return shelf.first if first else shelf.again

    async def _read_next(self, shelf: Shelf, *, first: bool) -> None:
        entries = shelf.first if first else shelf.again
        if not entries or shelf.put_off_until > self._loop.time():
            return  # while it waited for its turn
        entry = entries.popleft()
        if shelf.entries.get(entry.uri) is not entry or not (entry.missing() or entry.due(self._loop.time())):
            return
        entry.asked, version = True, entry.version
        try:
            await self._read_one(shelf, entry, version)
        finally:
            if entry.version == version:
                entry.asked = False

    async def _read_one(self, shelf: Shelf, entry: Entry, version: int) -> None:
        document, size, left_out, why = None, 0, False, ""
        try:
            result = await self._read(shelf.server, entry.uri, READ_S)
            document, warnings, size = from_contents(shelf.server, entry.uri, result)
            why = "; ".join(warnings)
            shelf.silent = 0
        except ServerTimedOut:
            why = f"its metadata did not come within {READ_S:g} s"
            shelf.silent += 1
        except (ServerNotRunning, ServerDied):
            shelf.silent = SILENT
        except (TooMuch, AnswerTooLarge) as error:
            document, why = entry.listed, f"{error}; it {AS_LISTED}"
        except (Unreadable, BadAnswer) as error:
            why = f"{error}; it {AS_LISTED}"
        except ServerError as error:
            left_out, why = True, f"{error}; it is left out"
        if shelf.silent >= SILENT:
            shelf.put_off_until = self._loop.time() + RETRY_S
        if entry.version != version:
            return  # it changed meanwhile: what came is of no use
        kept = self._keep(entry, document, size)
        shelf.news |= entry.came(kept, self._loop.time(), left_out=left_out)
        if why and why != entry.warned:
            _log.warning("MCP server %r: the document %.256r: %s", shelf.server, entry.uri, why)
            entry.warned = why

    def _keep(self, entry: Entry, document: Document | None, size: int) -> Kept | None:
        """Keep what there is room for; None: it did not come, and is asked for again."""
        if document is None:
            entry.retry_at = self._loop.time() + RETRY_S
            return None
        if document is entry.listed:
            return Kept(document, Extent.NOTHING)
        kept = self._stock.take(document, entry.listed, size)
        entry.overflown = kept.extent is Extent.NOTHING
        self._stock.overflown += entry.overflown
        self._say_full(kept)
        return kept

    def _say_full(self, kept: Kept) -> None:
        if kept.extent is Extent.WHOLE:
            self._full = self._full and self._stock.bytes > self._stock.most_bytes // 2
        elif kept.extent is Extent.INDEX and not self._full:
            self._full = True
            _log.warning(
                "there are more documents than %d bytes of metadata: the rest is read each time that it is shown; "
                "see SMCP_FINDER_CACHE_BYTES",
                self._stock.most_bytes,
            )

    def _of(self, servers: Collection[str]) -> list[Shelf]:
        return [shelf for server in servers if (shelf := self._shelves.get(server)) is not None]
