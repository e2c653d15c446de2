"""The catalog of a Computer: the documents of its MCP servers, filtered, ordered and paged (finder.txt). Pure."""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from smcp_proto.doubts import Doubt, Rule, doubt, type_name
from smcp_proto.instants import instant
from smcp_proto.schemas.finder import DEFAULT_LIMIT, DEFAULT_OFFSET, MAX_LIMIT
from smcp_proto.server_order import server_order
from smcp_proto.uris import DpeUri, parse_dpe_uri

_BETWEEN: Final = "\0"
"""Between the searched texts of a document; `fold` leaves none in them."""

_INDEX_FIELDS: Final = frozenset({"pages", "page_offset", "page_limit", "page_total"})
"""Of level 1 with `depth=pages`: a catalog does not hold them."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document of an MCP server with what is asked of it again and again, made once when its metadata was read."""

    server: str
    uri: DpeUri
    summary: Mapping[str, Any]
    """A `DPEDocumentSummary` as JSON, with what else the server sent."""
    text: str
    """Folded: title, keywords and summary."""
    file_type: str | None
    """Folded."""
    age: tuple[bool, int]
    """Ascending: the most recently modified first; then those of which that is not known."""

    @classmethod
    def of(
        cls, server: str, summary: object, *, listed: str | None = None
    ) -> tuple["Document | None", tuple[Doubt, ...]]:
        """Read the metadata of a document (level 1, or an item of level 0), of any JSON type.

        Args:
            listed: the URI by which `resources/list` names it, where that is known: it counts, the one inside does not.

        Returns:
            None where there is no valid URI of a document. Fields of wrong types are left out, unknown ones are kept.
        """
        warnings: list[Doubt] = []
        given: Any = summary.get("uri") if isinstance(summary, Mapping) else None
        named = given if listed is None else listed

        def warn(rule: Rule, message: str) -> None:
            warnings.append(doubt(server, named, rule, message))

        if not isinstance(summary, Mapping):
            warn(Rule.DOCUMENT_TYPE, f"its metadata are {type_name(summary)}, not an object; it is skipped")
            return None, tuple(warnings)
        uri = _document_uri(named, warn)
        if uri is None:
            return None, tuple(warnings)
        fields = _checked(summary, warn)
        if (listed is not None and given is not None and not _same(given, uri)) or (
            fields.get("doc_ref", uri.doc_ref) != uri.doc_ref
        ):
            warn(Rule.URI_DIFFERS, "its metadata name another document; the URI that was listed counts")
        fields |= {"doc_ref": uri.doc_ref, "uri": str(named).partition("?")[0].removesuffix("/")}
        return cls(
            server,
            uri,
            fields,
            _searched(fields),
            fold(fields["file_type"]) if "file_type" in fields else None,
            _age(fields.get("last_modified"), warn),
        ), tuple(warnings)


@dataclass(frozen=True, slots=True)
class OrganizedFinder:
    """What the Agent gets."""

    documents: list[Mapping[str, Any]]
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
    """Make one page of the catalog of all documents.

    Args:
        documents: those of one MCP server in the order of its list.
        keywords: documents that hold any of them in title, keywords or summary; None, or nothing but empty: all.
        file_type: only documents of exactly this type; None or empty: all. Case does not count in either.
        history: the MCP servers of the tool calls, the oldest call first.
        offset: from 0.
        limit: 1 to 100.

    Raises:
        ValueError: offset or limit is out of range; it begins with its name.
    """
    if offset < 0:
        raise ValueError("offset: not an integer from 0 on")
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit: not from 1 to {MAX_LIMIT}")
    matching = _matching(documents, keywords, file_type)
    servers: dict[str, list[Document]] = {}
    for document in matching:
        servers.setdefault(document.server, []).append(document)
    page: list[Mapping[str, Any]] = []
    skip = offset
    for server in server_order(servers, history):
        own = servers[server]
        if skip < len(own) and len(page) < limit:  # the others need no order
            own.sort(key=attrgetter("age"))
            page += [document.summary for document in own[skip : skip + limit - len(page)]]
        skip = max(0, skip - len(own))
    return OrganizedFinder(page, len(matching))


def fold(text: str) -> str:
    """Return `text` as it is compared: NFKC, case-folded; a NUL counts as U+FFFD."""
    if text.isascii():
        return text.lower().replace(_BETWEEN, "\ufffd")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold()).casefold()
    return unicodedata.normalize("NFKC", folded).replace(_BETWEEN, "\ufffd")


def _matching(
    documents: Sequence[Document], keywords: Sequence[str] | None, file_type: str | None
) -> Sequence[Document]:
    wanted = [fold(keyword) for keyword in keywords or () if keyword]
    if wanted:
        first, *others = wanted
        documents = [
            document
            for document in documents
            if first in document.text or any(keyword in document.text for keyword in others)
        ]
    if file_type:
        folded = fold(file_type)
        documents = [document for document in documents if document.file_type == folded]
    return documents


def _document_uri(text: Any, warn: Callable[[Rule, str], None]) -> DpeUri | None:
    if not isinstance(text, str):
        warn(Rule.URI_INVALID, f"its URI is {type_name(text)}; it is skipped")
        return None
    try:
        uri = parse_dpe_uri(text)
    except ValueError as error:
        warn(Rule.URI_INVALID, f"{error}; it is skipped")
        return None
    if uri.level != 1:
        warn(Rule.URI_LEVEL, f"its URI is of level {uri.level}, not a document's; it is skipped")
        return None
    if "?" in text:
        warn(Rule.URI_QUERY, "the URI of a document carries no query; it was dropped")
    return DpeUri(uri.host, uri.doc_ref)


def _same(given: object, uri: DpeUri) -> bool:
    if not isinstance(given, str):
        return False
    try:
        named = parse_dpe_uri(given)
    except ValueError:
        return False
    return (named.host, named.doc_ref, named.level) == (uri.host, uri.doc_ref, 1)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_FIELDS: Final[Mapping[str, Callable[[object], bool]]] = {
    "doc_ref": _is_text,
    "file_uri": _is_text,
    "file_type": _is_text,
    "title": _is_text,
    "page_count": _is_count,
    "keywords": _is_texts,
    "summary": _is_text,
    "last_modified": _is_text,
}
"""The metadata of a document (finder.txt, 元数据体系), and what each has to be."""


def _checked(summary: Mapping[str, Any], warn: Callable[[Rule, str], None]) -> dict[str, Any]:
    """The fields of right types; null is the same as missing."""
    kept: dict[str, Any] = {}
    for name, value in summary.items():
        legal = _FIELDS.get(name)
        if name in _INDEX_FIELDS or (legal is not None and value is None):
            continue
        if legal is None or legal(value):
            kept[name] = value
        else:
            warn(Rule.FIELD_TYPE, f"{name} has the wrong type; it is left out")
    return kept


def _searched(fields: Mapping[str, Any]) -> str:
    texts: Iterable[str] = (fields.get("title", ""), *fields.get("keywords", ()), fields.get("summary", ""))
    return _BETWEEN.join(map(fold, texts))


def _age(last_modified: str | None, warn: Callable[[Rule, str], None]) -> tuple[bool, int]:
    moment = None if last_modified is None else instant(last_modified)
    if last_modified is not None and moment is None:
        warn(Rule.LAST_MODIFIED_UNREADABLE, "last_modified is no instant of ISO 8601; the document stands last")
    return (True, 0) if moment is None else (False, -moment)
