"""A document of an MCP server, as its metadata describe it (finder.txt, 元数据体系). Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from smcp_proto.schemas.finder import DEFAULT_LIMIT, DEFAULT_OFFSET, ELEMENT_CATEGORIES
from smcp_proto.sorting import NUL, fold, instant, server_order
from smcp_proto.uris import DpeUri, parse_dpe_uri
from smcp_proto.validation import type_name

_Warn = Callable[[str], None]

_TEXTS: Final = frozenset({"doc_ref", "file_uri", "file_type", "title", "summary", "last_modified"})

_INDEX: Final = frozenset({"pages", "page_offset", "page_limit", "page_total", "content_markdown", "content_text"})
"""What level 1 holds beside the metadata: catalogs do not."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document, with what a catalog asks of it again and again: made once, when its metadata were read."""

    server: str
    uri: DpeUri
    summary: Mapping[str, Any]
    """A `DPEDocumentSummary` as JSON, with what else the server sent."""
    searched: str
    """Title, keywords and summary, folded, with a NUL between them."""
    file_type: str | None
    age: tuple[bool, int]
    """Ascending: the most recently modified first; then those of which that is not known."""

    @classmethod
    def of(cls, server: str, summary: object, *, listed: str | None = None) -> tuple["Document | None", list[str]]:
        """Read the metadata of a document (level 1, or an item of level 0); they may be JSON of any type.

        Args:
            listed: the URI by which `resources/list` names it, where that is known: it counts, the one inside does not.

        Returns:
            The document, None where there is no valid URI of one; and what is wrong, for the log. Fields of wrong types
            are left out, unknown ones are kept.
        """
        fields = summary if isinstance(summary, Mapping) else {}
        given = fields.get("uri")
        named = given if listed is None else listed
        warnings: list[str] = []
        warn = warnings.append
        if fields is not summary:
            warn(f"its metadata are {type_name(summary)}, not an object; they are not used")
            return None, warnings
        uri = _uri(named, warn)
        if uri is None:
            return None, warnings
        if listed is not None and given is not None and _uri(given, lambda _: None) != uri:
            warn("its metadata have another URI; the one that was listed counts")
        kept = _kept(fields, warn)
        if kept.get("doc_ref", uri.doc_ref) != uri.doc_ref:
            warn("its doc_ref is not that of its URI, which counts")
        kept |= {"doc_ref": uri.doc_ref, "uri": str(named).partition("?")[0].removesuffix("/")}
        texts = (kept.get("title", ""), *kept.get("keywords", ()), kept.get("summary", ""))
        file_type = fold_type(kept["file_type"]) if "file_type" in kept else None
        age = _age(kept.get("last_modified"), warn)
        return cls(server, uri, kept, NUL.join(map(fold, texts)), file_type, age), warnings


def fold_type(file_type: str) -> str:
    """A file type as it is compared: folded, and without the dot that some write before it."""
    return fold(file_type).removeprefix(".")


def _uri(text: object, warn: _Warn) -> DpeUri | None:
    """The document that the URI names; None, with a warning, if it names none."""
    if not isinstance(text, str):
        warn(f"its URI is {type_name(text)}; it is skipped")
        return None
    try:
        uri = parse_dpe_uri(text)
    except ValueError as error:
        warn(f"{error}; it is skipped")
        return None
    if uri.level != 1:
        warn(f"its URI is of level {uri.level}, a document's is of level 1; it is skipped")
        return None
    if "?" in text:
        warn("query: what names a document carries none; it was dropped")
    return uri


def _kept(fields: Mapping[str, Any], warn: _Warn) -> dict[str, Any]:
    """The fields of a catalog. Null is the same as missing."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        is_known = name in _TEXTS or name in ("keywords", "page_count")
        if name in _INDEX or (value is None and is_known):
            continue
        if name == "keywords" and isinstance(value, list):
            kept[name] = [keyword for keyword in value if isinstance(keyword, str)]
            if len(kept[name]) < len(value):
                warn("some of its keywords are not strings; they are left out")
        elif is_known and not (
            isinstance(value, str) if name in _TEXTS else name == "page_count" and type(value) is int and value >= 0
        ):
            warn(f"its {name} is not what it has to be, but {type_name(value)}; it is left out")
        else:
            kept[name] = value
    return kept


def _age(last_modified: str | None, warn: _Warn) -> tuple[bool, int]:
    if last_modified is None:
        return True, 0
    moment = instant(last_modified)
    if moment is None:
        warn("its last_modified is not an ISO 8601 instant; it stands last")
        return True, 0
    return False, -moment


@dataclass(frozen=True, slots=True)
class OrganizedFinder:
    """One page of the catalog, for the Agent."""

    documents: list[Mapping[str, Any]]
    """A `DPEDocumentSummary` each, as JSON."""
    total_count: int


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
        offset, limit: from 0; from 1 (`GetFinderReq`).
    """
    matching = _with_any(documents, keywords)
    if file_type:
        wanted = fold_type(file_type)
        matching = [document for document in matching if document.file_type == wanted]
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


MAX_UNKNOWN: Final = 20
"""Unknown categories of one answer that are named."""
_SHOWN: Final = 40


def unknown_categories(answer: object) -> Iterator[str]:
    """Unknown categories in an answer of level 2 or 3, each once; the elements are kept."""
    if not isinstance(answer, Mapping):
        return
    elements = answer.get("elements")
    found = [answer] if "category" in answer else elements if isinstance(elements, list) else []
    said = (each.get("category") for each in found if isinstance(each, Mapping))
    given = (category if isinstance(category, str) else None for category in said)
    unknown = dict.fromkeys(category for category in given if category not in ELEMENT_CATEGORIES)
    for category in islice(unknown, MAX_UNKNOWN):
        if category is None:
            yield "an element has no category; it is kept"
        else:
            yield f"{category[:_SHOWN]!r} is none of the categories of elements; it is kept"
