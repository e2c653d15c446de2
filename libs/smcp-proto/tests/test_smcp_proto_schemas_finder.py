"""Documents, pages and elements: the examples of finder.txt, level by level."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from smcp_proto.schemas import (
    ELEMENT_CATEGORIES,
    DPEDocument,
    DPEDocumentCatalog,
    DPEDocumentSummary,
    DPEElement,
    DPEElementDetail,
    DPEPage,
    DPEPageSummary,
    GetFinderRet,
)

REPORT: dict[str, Any] = {
    "doc_ref": "rpt-2026",
    "uri": "dpe://com.example.docs/rpt-2026",
    "file_uri": "file:///data/reports/2026-annual.xlsx",
    "file_type": "xlsx",
    "title": "2026 年度报告",
    "page_count": 12,
    "keywords": ["财务", "年报"],
    "summary": "2026 年度财务与运营报告",
    "last_modified": "2026-01-15T08:30:00Z",
}
CONTRACT: dict[str, Any] = {
    "doc_ref": "contract-a1",
    "uri": "dpe://com.example.docs/contract-a1",
    "file_uri": "file:///data/contracts/a1.pdf",
    "file_type": "pdf",
    "title": "A1 合同",
    "page_count": 5,
    "keywords": ["合同"],
    "summary": "A1 项目服务合同",
    "last_modified": "2026-02-01T14:00:00Z",
}
PAGES: list[dict[str, Any]] = [
    {
        "page_index": 0,
        "title": "概览",
        "element_count": 8,
        "uri": "dpe://com.example.docs/rpt-2026/pages/0",
        "doc_ref": "rpt-2026",
    },
    {
        "page_index": 1,
        "title": "收入分析",
        "element_count": 15,
        "uri": "dpe://com.example.docs/rpt-2026/pages/1",
        "doc_ref": "rpt-2026",
    },
]
TABLE: dict[str, Any] = {
    "headers": ["季度", "收入(万元)", "同比增长"],
    "rows": [["Q1", "1,250", "+12%"], ["Q2", "1,380", "+15%"], ["Q3", "1,420", "+8%"], ["Q4", "1,560", "+18%"]],
}
PAGE: dict[str, Any] = {
    "page_index": 0,
    "title": "概览",
    "doc_ref": "rpt-2026",
    "uri": "dpe://com.example.docs/rpt-2026/pages/0",
    "elements": [
        {
            "element_id": "h-001",
            "category": "heading",
            "summary": "2026 年度总结",
            "content": {"level": 1, "text": "2026 年度总结"},
        },
        {
            "element_id": "txt-001",
            "category": "text",
            "summary": "报告引言段落",
            "content": {"text": "本报告总结了 2026 年度公司在各业务领域的运营情况..."},
        },
        {"element_id": "tbl-001", "category": "table", "summary": "季度收入对比表(4行3列)", "content": TABLE},
        {
            "element_id": "chart-001",
            "category": "chart",
            "summary": "季度收入趋势图",
            "content": {
                "chart_type": "line",
                "title": "季度收入趋势",
                "data_summary": "Q1-Q4 收入呈上升趋势,Q4 达到最高点 1,560 万元",
            },
        },
    ],
    "element_count": 4,
}
DETAIL: dict[str, Any] = {
    "element_id": "tbl-001",
    "category": "table",
    "doc_ref": "rpt-2026",
    "page_index": 0,
    "uri": "dpe://com.example.docs/rpt-2026/elements/tbl-001",
    "summary": "季度收入对比表(4行3列)",
    "content": {**TABLE, "total_rows": 4, "total_columns": 3},
    "metadata": {"source_range": "A1:C5", "has_formulas": True},
}


@pytest.mark.rule("finder.format.{0,1.metadata,1.pages,2,3}", "finder.scope.data")
@pytest.mark.parametrize(
    ("model", "example"),
    [
        (DPEDocumentCatalog, {"documents": [REPORT, CONTRACT], "total_count": 2}),
        (DPEDocument, REPORT),
        (DPEDocument, {**REPORT, "pages": PAGES, "page_offset": 0, "page_limit": 20, "page_total": 12}),
        (DPEPage, PAGE),
        (DPEPage, {"page_index": 0, "title": "概览", "content_markdown": "# 2026"}),
        (DPEPage, {"page_index": 0, "title": "概览", "content_text": "2026"}),
        (DPEElementDetail, DETAIL),
        (GetFinderRet, {"documents": [REPORT, CONTRACT], "total_count": 2, "req_id": "req-001"}),
    ],
)
def test_the_examples_of_the_page(model: Any, example: dict[str, Any]) -> None:
    assert json.loads(model.model_validate(example).model_dump_json(exclude_unset=True)) == example


@pytest.mark.rule("finder.dpe.document")
def test_a_document_is_known_by_its_key_and_its_uri_alone() -> None:
    document = DPEDocumentSummary.model_validate({"doc_ref": "d", "uri": "dpe://h/d"})
    assert document.model_dump() == {"doc_ref": "d", "uri": "dpe://h/d"}
    assert document.last_modified is None
    with pytest.raises(ValidationError):
        DPEDocumentSummary.model_validate({"uri": "dpe://h/d"})


@pytest.mark.rule(
    "finder.{dpe.page,dpe.element,metadata.document.title,metadata.document.file_type}",
    "finder.{metadata.document.page_count,metadata.document.keywords,metadata.document.summary}",
    "finder.{metadata.document.last_modified,metadata.document.file_uri,metadata.page.page_index}",
    "finder.{metadata.page.title,metadata.page.element_count,metadata.element.element_id}",
    "finder.{metadata.element.category,metadata.element.summary}",
)
@pytest.mark.parametrize(
    ("model", "field", "legal", "wrong"),
    [
        (DPEDocumentSummary, "title", "年报", 7),
        (DPEDocumentSummary, "file_type", "xlsx", 7),
        (DPEDocumentSummary, "page_count", 12, "12"),
        (DPEDocumentSummary, "page_count", 0, -1),
        (DPEDocumentSummary, "keywords", ["财务"], "财务"),
        (DPEDocumentSummary, "summary", "总结", ["总结"]),
        (DPEDocumentSummary, "last_modified", "2026-01-15T08:30:00Z", 1768465800),
        (DPEDocumentSummary, "file_uri", "file:///data/a.xlsx", 7),
        (DPEPageSummary, "page_index", 0, -1),
        (DPEPageSummary, "page_index", 7, "7"),
        (DPEPageSummary, "title", "概览", 7),
        (DPEPageSummary, "element_count", 0, -1),
        (DPEElement, "element_id", "tbl-001", 7),
        (DPEElement, "category", "table", 7),
        (DPEElement, "summary", "季度收入对比表", 7),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_metadata_have_the_types_of_the_page(model: Any, field: str, legal: object, wrong: object) -> None:
    every: dict[Any, dict[str, Any]] = {
        DPEDocumentSummary: {"doc_ref": "d", "uri": "dpe://h/d"},
        DPEPageSummary: {"page_index": 0},
        DPEElement: {"element_id": "e", "category": "text"},
    }
    least = every[model]
    assert getattr(model.model_validate({**least, field: legal}), field) == legal
    with pytest.raises(ValidationError):
        model.model_validate({**least, field: wrong})


@pytest.mark.rule("finder.categories")
def test_the_19_categories() -> None:
    assert " ".join(ELEMENT_CATEGORIES) == (
        "text heading list code table pivot_table chart diagram image formula link annotation "
        "header footer separator audio video form widget"
    )
    assert len(ELEMENT_CATEGORIES) == 19
