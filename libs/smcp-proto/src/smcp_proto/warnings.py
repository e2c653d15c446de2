"""What is wrong with what an MCP server listed or sent, as data: the caller logs it, and the rest is delivered."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

MAX_WARNED_URI: Final = 256
"""Characters of a URI that a server_warning names: what a server sends has no bound."""


class Rule(StrEnum):
    """The rules of desktop.txt and finder.txt that a server can break."""

    URI_INVALID = "uri_invalid"
    """It is skipped."""
    URI_QUERY = "uri_query"
    """The query is dropped."""
    URI_LEVEL = "uri_level"
    """A `dpe://` URI that is no document's; it is skipped."""
    URI_DIFFERS = "uri_differs"
    """The metadata name another document than the one that was listed; the listed one counts."""
    DOC_REF_DIFFERS = "doc_ref_differs"
    """The metadata have another doc_ref than the URI, which counts."""

    CONTENTS_TYPE = "contents_type"
    """What is neither text nor blob is skipped."""
    BLOB_SKIPPED = "blob_skipped"

    ANNOTATIONS_TYPE = "annotations_type"
    META_TYPE = "meta_type"
    PRIORITY_TYPE = "priority_type"
    PRIORITY_RANGE = "priority_range"
    FULLSCREEN_TYPE = "fullscreen_type"
    AUDIENCE_TYPE = "audience_type"
    AUDIENCE_WITHOUT_ASSISTANT = "audience_without_assistant"
    LAST_MODIFIED_TYPE = "last_modified_type"
    LAST_MODIFIED_UNREADABLE = "last_modified_unreadable"

    DOCUMENT_TYPE = "document_type"
    """Metadata that are no object; they are not used."""
    FIELD_TYPE = "field_type"
    """A field of another type than the page says; it is left out."""
    UNKNOWN_CATEGORY = "unknown_category"
    """None of the 19 categories; the element is kept."""
    FORMAT_IGNORED = "format_ignored"
    """An answer that is not in the format that was asked for; it is taken as it is."""


@dataclass(frozen=True, slots=True)
class ServerWarning:
    """A warning about one window, document or element."""

    server: str
    """The MCP server's name."""
    uri: str
    """As the server wrote it, at most `MAX_WARNED_URI` characters of it; empty where it gave none."""
    rule: Rule
    message: str
    """For the log: what is wrong, and what was done about it."""


def server_warning(server: str, uri: object, rule: Rule, message: str) -> ServerWarning:
    """A server_warning about whatever stands where the URI should."""
    return ServerWarning(server, uri[:MAX_WARNED_URI] if isinstance(uri, str) else "", rule, message)


def type_name(value: Any) -> str:
    """The JSON type of a value, for a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
    return "an object"
