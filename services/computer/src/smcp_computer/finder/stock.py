"""How much is kept of the documents of all MCP servers, within two bounds (ADR 0020)."""

import sys
from dataclasses import dataclass, replace
from enum import Enum, auto

from smcp_proto.documents import Document


class Extent(Enum):
    """How much of the metadata of a document is kept."""

    NOTHING = auto()
    """It is as `resources/list` describes it."""
    INDEX = auto()
    """What it is found and ordered by; the rest is read where it is shown."""
    WHOLE = auto()


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one document."""

    document: Document
    extent: Extent
    size: int = 0
    """Bytes of its metadata."""
    index_size: int = 0
    """Bytes of what it is found and ordered by."""


@dataclass(slots=True)
class Stock:
    """Args:
    most_bytes: of metadata that are kept whole.
    most_index_bytes: of what documents are found and ordered by. The metadata of no others are known.
    """

    most_bytes: int
    most_index_bytes: int
    bytes: int = 0
    index_bytes: int = 0
    partly: int = 0
    """Documents of which the index alone is kept."""

    overflown: int = 0
    """Documents of which nothing could be kept."""
    has_freed: bool = False
    """Whether something of the index was given back since something did not fit."""

    @property
    def is_roomy(self) -> bool:
        """Whether the index has so much room again that what did not fit may be read anew."""
        return self.has_freed and self.index_bytes <= self.most_index_bytes // 2

    def take(self, document: Document, listed: Document, size: int) -> Kept:
        """Keep of a document what there is room for.

        Args:
            document: as its metadata describe it.
            listed: as `resources/list` describes it.
            size: bytes of the metadata.
        """
        index_size = sys.getsizeof(document.searched)
        if self.index_bytes + index_size > self.most_index_bytes:
            self.has_freed = False
            return Kept(listed, Extent.NOTHING)
        self.index_bytes += index_size
        if self.bytes + size > self.most_bytes:
            self.partly += 1
            return Kept(replace(document, summary=listed.summary), Extent.INDEX, index_size=index_size)
        self.bytes += size
        return Kept(document, Extent.WHOLE, size, index_size)

    def give_back(self, kept: Kept) -> None:
        """It is not kept any more."""
        self.partly -= kept.extent is Extent.INDEX
        self.bytes -= kept.size
        self.index_bytes -= kept.index_size
        self.has_freed = self.has_freed or kept.index_size > 0
