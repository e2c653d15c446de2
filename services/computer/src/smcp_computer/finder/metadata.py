"""Makes a document of what a server answers for it, or lists of it; and warns of answers in a wrong format."""

import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson

from smcp_bus import exact_json
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.resources.warn_once import WarnOnce
from smcp_proto.errors import Malformed
from smcp_proto.finder import Document, not_in_format, unknown_categories
from smcp_proto.uris import DPE, parse_dpe_uri, scheme_of
from smcp_proto.validation import check_depth, mended

_log = logging.getLogger("smcp_computer.finder")

LARGEST: Final = 1024 * 1024
"""Characters of an answer that is looked at: reading it once more takes time from everything else."""
PAGE_LEVEL: Final = 2
"""From this level on there are elements."""
MAX_BYTES: Final = 32 * 1024
"""Of the metadata of one document: 100 of them have to fit into what a small client takes in one message (4 MiB)."""


class Unreadable(Exception):
    """The metadata cannot be used: the document is listed by what its server's list says.

    The message says why, for the log, and holds nothing that the server sent.
    """


class TooMuch(Unreadable):
    """They are too large, and will be."""


def from_contents(server: str, uri: str, result: Mapping[str, Any]) -> tuple[Document, list[str], int]:
    """The document that level 1 describes, with warnings and the size of its metadata in bytes.

    Args:
        uri: as the server lists it.
        result: of `resources/read`. The MIME type says nothing here: what counts is that there is JSON.

    Raises:
        Unreadable: there is none, or none that can be used.
    """
    text = _text(result)
    if text is None:
        raise Unreadable("its contents have no text")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise TooMuch(f"its metadata have {size} bytes, more than {MAX_BYTES}")
    try:
        summary = _parsed(text)
    except ValueError:
        raise Unreadable("its metadata are not JSON") from None
    if isinstance(summary, dict):
        try:
            check_depth(summary)
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
    told = {"title": title, "summary": resource.get("description"), "last_modified": modified}
    short = {name: text for name, text in told.items() if isinstance(text, str) and len(text) <= MAX_BYTES // 8}
    document, warnings = Document.of(server, short, listed=uri)
    return document, "; ".join(warnings)


def _text(result: Mapping[str, Any]) -> str | None:
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


class ResponseChecks:
    def __init__(self, events: ServerEvents) -> None:
        self._warnings = WarnOnce(_log, events)

    def look(self, server: str, uri: str, result: Mapping[str, Any]) -> None:
        """Warn of a page or element with unknown categories, and of an answer in another format than was asked for.

        Args:
            uri: that was asked for.
            result: of `resources/read`.
        """
        if scheme_of(uri) != DPE:
            return
        try:
            asked = parse_dpe_uri(uri)
        except ValueError:
            return
        text = _text(result)
        if text is None or len(text) > LARGEST:
            return
        try:
            answer = orjson.loads(text)
        except orjson.JSONDecodeError:
            self._warnings.warn(server, f"{uri[:256]}: what was read is not JSON")
            return
        odd = [*not_in_format(answer, asked.format)]
        if asked.level >= PAGE_LEVEL:
            odd += unknown_categories(answer)
        self._warnings.warn(server, *(f"{uri[:256]}: {what}" for what in odd))
