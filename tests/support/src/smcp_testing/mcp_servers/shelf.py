"""What the context servers hold: resources with their contents, and documents of all four DPE levels."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from smcp_proto.uris import DpeUri, parse_dpe_uri
from smcp_testing.mcp_servers.dpe_formats import in_format

HOST: Final = "com.example.desk"
JSON: Final = "application/json"


DEFAULTS: Final = {"format": "json", "depth": "metadata", "offset": "0", "limit": "20", "categories": ""}
"""The parameters of a query (finder.txt, 查询参数)."""


@dataclass
class Item:
    """A resource as it is listed, and what reading it gives."""

    resource: dict[str, Any]
    contents: list[dict[str, Any]]


@dataclass
class Shelf:
    """Args:
    items: by URI, in the order in which they are listed.
    documents: by doc_ref; see `document`.
    more_templates: beside those of documents.
    """

    host: str = HOST
    items: dict[str, Item] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    more_templates: list[dict[str, Any]] = field(default_factory=list)

    def put(self, uri: str, resource: Mapping[str, Any] | None = None, contents: list[Any] | None = None) -> None:
        """List a resource, or list it anew at its place."""
        listed = {"uri": uri, "name": uri.rsplit("/", 1)[-1], "mimeType": "text/plain", **(resource or {})}
        text = {"uri": uri, "mimeType": "text/plain", "text": f"text of {uri}"}
        self.items[uri] = Item(listed, [text] if contents is None else contents)

    def put_document(self, document: dict[str, Any]) -> str:
        """List a document at level 1; gives its URI."""
        uri = document_uri(self.host, document["doc_ref"])
        self.documents[document["doc_ref"]] = document
        self.items[uri] = Item({"uri": uri, "name": document["title"], "mimeType": JSON}, [])
        return uri

    def listed(self) -> list[dict[str, Any]]:
        return [item.resource for item in self.items.values()]

    def read(self, uri: str) -> list[dict[str, Any]] | None:
        """The contents; None: there is no such resource."""
        item = self.items.get(uri)
        if item is not None and item.contents:
            return item.contents
        if uri.startswith("dpe://"):
            try:
                asked, query = parse_dpe_uri(uri), DEFAULTS | dict(parse_qsl(urlsplit(uri).query))
                found = self._document_level(asked, query)
                found = None if found is None else in_format(found, asked.level, query["format"])
            except (ValueError, LookupError):
                found = None
            if found is not None:
                return [{"uri": uri, "mimeType": JSON, "text": json.dumps(found, ensure_ascii=False)}]
        return None if item is None else item.contents

    def templates(self) -> list[dict[str, Any]]:
        return [
            {"uriTemplate": f"dpe://{self.host}/{{doc_ref}}/pages/{{page_index}}", "name": "page"},
            {"uriTemplate": f"dpe://{self.host}/{{doc_ref}}/elements/{{element_id}}", "name": "element"},
            *self.more_templates,
        ]

    def complete(self, argument: str, value: str, chosen: Mapping[str, str]) -> list[str]:
        """The values of a template's parameter that begin with `value`; `chosen`: those of the others."""
        document = self.documents.get(chosen.get("doc_ref", ""))
        pages = document["pages"] if document is not None else []
        match argument:
            case "doc_ref":
                found = list(self.documents)
            case "page_index":
                found = [str(number) for number in range(len(pages))]
            case "element_id":
                wanted = chosen.get("page_index", "")
                found = [
                    element["element_id"]
                    for number, page in enumerate(pages)
                    if wanted in ("", str(number))
                    for element in page["elements"]
                ]
            case _:
                found = []
        return [text for text in found if text.startswith(value)]

    def _document_level(self, uri: DpeUri, query: dict[str, str]) -> dict[str, Any] | None:
        if uri.host != self.host:
            return None
        if uri.doc_ref is None:
            summaries = [_summary(self.host, document) for document in self.documents.values()]
            return {"documents": summaries, "total_count": len(summaries)}
        document = self.documents[uri.doc_ref]
        if uri.page is not None:
            return _page(self.host, document, uri, query["categories"])
        if uri.element is not None:
            return _element(self.host, document, uri.element)
        found = _summary(self.host, document)
        if query["depth"] == "pages":
            offset, limit = int(query["offset"]), int(query["limit"])
            pages = [
                {
                    "page_index": number,
                    "title": page["title"],
                    "element_count": len(page["elements"]),
                    "uri": f"{found['uri']}/pages/{number}",
                    "doc_ref": uri.doc_ref,
                }
                for number, page in enumerate(document["pages"])
            ]
            found["pages"] = pages[offset : offset + limit]
            found |= {"page_offset": offset, "page_limit": limit, "page_total": len(pages)}
        return found


def document_uri(host: str, doc_ref: str) -> str:
    return f"dpe://{quote(host, safe='')}/{quote(doc_ref, safe='')}"


def document(ref: str, **fields: Any) -> dict[str, Any]:
    """A document with two pages, unless `fields` says otherwise: its metadata, and `pages` with their elements."""
    pages = [
        {
            "title": "Overview",
            "elements": [
                {
                    "element_id": "h-001",
                    "category": "heading",
                    "summary": f"Heading of {ref}",
                    "content": {"level": 1, "text": f"Heading of {ref}"},
                },
                {"element_id": "txt-001", "category": "text", "summary": "Text", "content": {"text": "Some text."}},
            ],
        },
        {
            "title": "Revenue",
            "elements": [
                {
                    "element_id": "tbl-001",
                    "category": "table",
                    "summary": "Revenue by quarter",
                    "content": {"headers": ["Quarter", "Revenue"], "rows": [["Q1", "1,250"], ["Q2", "1,380"]]},
                    "metadata": {"source_range": "A1:B3", "has_formulas": True},
                },
            ],
        },
    ]
    return {
        "doc_ref": ref,
        "file_uri": f"file:///data/{ref}.xlsx",
        "file_type": "xlsx",
        "title": f"Report {ref}",
        "keywords": ["report", ref],
        "summary": f"All about {ref}",
        "last_modified": "2026-01-15T08:30:00Z",
        "pages": pages,
        **fields,
    }


def _summary(host: str, document: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in document.items() if name != "pages"}
    return {"page_count": len(document["pages"]), "uri": document_uri(host, document["doc_ref"]), **said}


def _page(host: str, document: dict[str, Any], uri: DpeUri, categories: str) -> dict[str, Any]:
    assert uri.page is not None
    page = document["pages"][uri.page]
    elements = [
        {name: value for name, value in element.items() if name != "metadata"}
        for element in page["elements"]
        if not categories or element["category"] in categories.split(",")
    ]
    return {
        "page_index": uri.page,
        "title": page["title"],
        "doc_ref": uri.doc_ref,
        "uri": f"{document_uri(host, document['doc_ref'])}/pages/{uri.page}",
        "elements": elements,
        "element_count": len(elements),
    }


def _element(host: str, document: dict[str, Any], wanted: str) -> dict[str, Any] | None:
    for number, page in enumerate(document["pages"]):
        for element in page["elements"]:
            if element["element_id"] == wanted:
                where = f"{document_uri(host, document['doc_ref'])}/elements/{quote(wanted, safe='')}"
                return {**element, "doc_ref": document["doc_ref"], "page_index": number, "uri": where}
    return None
