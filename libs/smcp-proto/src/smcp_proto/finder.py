"""The catalog of a Computer: the documents of its MCP servers, filtered, ordered and paged (finder.txt, Organizer)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from smcp_proto.documents import Document as Document
from smcp_proto.documents import fold_type
from smcp_proto.folding import fold
from smcp_proto.schemas.finder import DEFAULT_LIMIT, DEFAULT_OFFSET, MAX_LIMIT
from smcp_proto.server_order import server_order


@dataclass(frozen=True, slots=True)
class OrganizedFinder:
    """What the Agent gets."""

    documents: list[Mapping[str, Any]]
    """One page: a `DPEDocumentSummary` each, as JSON."""
    total_count: int
    """Documents that match, on all pages."""


def organize_finder(
    documents: Sequence[Document],
    keywords: Sequence[str] | None,
    file_type: str | None,
    history: Sequence[str],
    *,
    offset: int = DEFAULT_OFFSET,
    limit: int = DEFAULT_LIMIT,
) -> OrganizedFinder:
    """Make one page of the catalog: servers by recent use and then by name, of each the latest first.

    Args:
        documents: those of one MCP server in the order of its list.
        keywords: documents that hold any of them in title, keywords or summary; none, or nothing but empty ones: all.
        file_type: only documents of exactly this type; None or empty: all. Neither case nor a dot before it counts.
        history: the MCP servers of the tool calls, the oldest call first.
        offset: from 0.
        limit: 1 to 100.

    Raises:
        ValueError: offset or limit is out of its range; it begins with its name.
    """
    if offset < 0:
        raise ValueError("offset: not an integer from 0 on")
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit: not from 1 to {MAX_LIMIT}")
    matching = _of_type(_with_any(documents, keywords), file_type)
    servers: dict[str, list[Document]] = {}
    for document in matching:
        servers.setdefault(document.server, []).append(document)
    page: list[Mapping[str, Any]] = []
    for server in server_order(servers, history):
        own = servers[server]
        if offset < len(own):  # those of the servers before and after the page need no order
            own.sort(key=attrgetter("age"))
            page += [document.summary for document in own[offset : offset + limit - len(page)]]
            if len(page) == limit:
                break
        offset = max(0, offset - len(own))
    return OrganizedFinder(page, len(matching))


def _with_any(documents: Sequence[Document], keywords: Sequence[str] | None) -> Sequence[Document]:
    wanted = [fold(keyword) for keyword in keywords or () if keyword]
    if not wanted:
        return documents
    found = []
    for document in documents:  # loops, and not any(): ten thousand generators take longer than what they look for
        searched = document.searched
        for keyword in wanted:
            if keyword in searched:
                found.append(document)
                break
    return found


def _of_type(documents: Sequence[Document], file_type: str | None) -> Sequence[Document]:
    if not file_type:
        return documents
    wanted = fold_type(file_type)
    return [document for document in documents if document.file_type == wanted]
