"""`client:get_finder`, and the documents, pages and elements behind `dpe://` URIs (finder.txt; DPE is
Document-Page-Element)."""

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from smcp_proto.member_names import Name
from smcp_proto.schemas.base import AgentCallData, ReqId, Wire, absent

ElementCategory = Literal[
    "text", "heading", "list", "code",
    "table", "pivot_table",
    "chart", "diagram", "image",
    "formula", "link", "annotation",
    "header", "footer", "separator",
    "audio", "video",
    "form", "widget",
]  # fmt: skip
"""The 19 standard categories of elements."""

ELEMENT_CATEGORIES: Final[tuple[ElementCategory, ...]] = get_args(ElementCategory)

DEFAULT_OFFSET: Final = 0
DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100

Count = Annotated[int, Field(strict=True, ge=0)]
Limit = Annotated[int, Field(strict=True, ge=1, le=MAX_LIMIT)]


class GetFinderReq(AgentCallData):
    computer: Name
    keywords: Annotated[list[Annotated[str, Field(max_length=1024)]], Field(max_length=64)] | None = absent()
    """Documents that hold any of them in title, keywords or summary; none, or an empty list: all."""
    file_type: str | None = absent()
    """Only documents of exactly this type (`xlsx`), without a dot."""
    offset: Count = DEFAULT_OFFSET
    limit: Limit = DEFAULT_LIMIT


class DPEDocumentSummary(Wire):
    """A document as catalogs list it: what is known of it beside its pages."""

    doc_ref: str
    """The MCP server's own opaque key of it."""
    uri: str
    """`dpe://host/doc-ref`."""
    file_uri: str | None = absent()
    file_type: str | None = absent()
    title: str | None = absent()
    page_count: Count | None = absent()
    """Pages in all: legal page indices are 0 to `page_count - 1`."""
    keywords: list[str] | None = absent()
    summary: str | None = absent()
    last_modified: str | None = absent()
    """ISO 8601, any offset; kept as it came, also where it cannot be read."""


class _Formatted(Wire):
    content_markdown: str | None = absent()
    """With `format=markdown`: in place of the documents, pages, elements or content."""
    content_text: str | None = absent()
    """With `format=text`: likewise."""


class DPEDocumentCatalog(_Formatted):
    """Level 0, `dpe://host`: the documents of one MCP server."""

    documents: list[DPEDocumentSummary] | None = absent()
    total_count: Count


class DPEPageSummary(Wire):
    """A page in a document's index."""

    page_index: Count
    title: str | None = absent()
    element_count: Count | None = absent()
    uri: str | None = absent()
    doc_ref: str | None = absent()


class DPEDocument(DPEDocumentSummary, _Formatted):
    """Level 1, `dpe://host/doc-ref`: a document; with `depth=pages` a part of its index too."""

    pages: list[DPEPageSummary] | None = absent()
    page_offset: Count | None = absent()
    page_limit: Limit | None = absent()
    page_total: Count | None = absent()


class DPEElement(Wire):
    """An element on a page."""

    element_id: str
    category: str
    """One of `ELEMENT_CATEGORIES`; another that a server sends is kept."""
    summary: str | None = absent()
    content: Any = None
    """The content; its form depends on the category."""


class DPEPage(_Formatted):
    """Level 2, `dpe://host/doc-ref/pages/N`: a page with its elements."""

    page_index: Count
    title: str | None = absent()
    doc_ref: str | None = absent()
    uri: str | None = absent()
    elements: list[DPEElement] | None = absent()
    element_count: Count | None = absent()


class DPEElementDetail(DPEElement, _Formatted):
    """Level 3, `dpe://host/doc-ref/elements/ID`: one element, whole."""

    doc_ref: str | None = absent()
    page_index: Count | None = absent()
    uri: str | None = absent()
    metadata: dict[str, Any] | None = absent()


class GetFinderRet(Wire):
    """The reply to `client:get_finder`: one part of the documents of all MCP servers of a Computer."""

    documents: list[DPEDocumentSummary]
    total_count: Count
    """Documents that match, before `offset` and `limit`."""
    req_id: ReqId
    a2c_as_listed: Count | None = absent()
    """Not in the protocol: documents of the Computer whose metadata it does not know now (not read yet, or more than it
    keeps). They were searched and ordered, and are shown, as `resources/list` describes them. Absent: none."""
