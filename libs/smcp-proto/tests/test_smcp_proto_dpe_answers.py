"""Answers to reads of documents: in other formats as MCP servers render them, and unknown categories."""

from typing import Any

import pytest

from smcp_proto.finder import unknown_categories
from smcp_proto.schemas import ELEMENT_CATEGORIES, DPEDocument, DPEDocumentCatalog, DPEElementDetail, DPEPage
from smcp_testing.mcp_servers.dpe_formats import RENDERED, in_format, rendered

TEXT: dict[str, Any] = {"element_id": "t", "category": "text", "summary": "s", "content": {"text": "引言"}}
DOCUMENT: dict[str, Any] = {
    "doc_ref": "r", "uri": "dpe://h/r", "title": "年报", "summary": "总结", "pages": [
        {"page_index": 0, "title": "概览", "uri": "dpe://h/r/pages/0", "doc_ref": "r"},
    ],
}  # fmt: skip
CATALOG: dict[str, Any] = {"documents": [{"doc_ref": "r", "uri": "dpe://h/r", "title": "年报"}], "total_count": 1}
PAGE: dict[str, Any] = {"page_index": 0, "title": "概览", "elements": [TEXT, TEXT], "element_count": 2}
DETAIL: dict[str, Any] = {**TEXT, "doc_ref": "r", "page_index": 0, "metadata": {"a": 1}}


@pytest.mark.rule("answers.finder.format")
@pytest.mark.parametrize(
    ("level", "model", "answer", "markdown", "text"),
    [
        (0, DPEDocumentCatalog, CATALOG, "[年报](dpe://h/r)", "年报 (dpe://h/r)"),
        (
            1, DPEDocument, DOCUMENT,
            "# 年报\n\n总结\n\n[概览](dpe://h/r/pages/0)", "年报\n\n总结\n\n概览 (dpe://h/r/pages/0)",
        ),
        (2, DPEPage, PAGE, "引言\n\n引言", "引言\n\n引言"),
        (3, DPEElementDetail, DETAIL, "引言", "引言"),
    ],
)  # fmt: skip
def test_a_rendered_answer_replaces_the_elements_by_text(
    level: int, model: Any, answer: dict[str, Any], markdown: str, text: str
) -> None:
    kept = {name: value for name, value in answer.items() if name != RENDERED[level]}
    for chosen, said in (
        ("json", answer),
        ("markdown", {**kept, "content_markdown": markdown}),
        ("text", {**kept, "content_text": text}),
    ):
        made = in_format(answer, level, chosen)
        assert made == said
        assert model.model_validate(made).model_dump(exclude_unset=True) == made


@pytest.mark.rule("answers.finder.contents")
@pytest.mark.parametrize(
    ("category", "content", "markdown", "text"),
    [
        pytest.param(*row, marks=pytest.mark.rule(f"finder.markdown.{row[0] if row[0] != 'video' else 'other'}"))
        for row in (
            ("heading", {"level": 2, "text": "总结"}, "## 总结", "总结"),
            ("text", {"text": "一\n二\n\n三"}, "一\n二\n\n三", "一\n二\n\n三"),
            (
                "table",
                {"headers": ["a", "b"], "rows": [["1", "2"]]},
                "| a | b |\n| --- | --- |\n| 1 | 2 |",
                "a\tb\n1\t2",
            ),
            ("list", {"items": ["a", "b"]}, "- a\n- b", "- a\n- b"),
            ("list", {"items": ["a", "b"], "ordered": True}, "1. a\n2. b", "1. a\n2. b"),
            ("code", {"code": "x = 1", "language": "python"}, "```python\nx = 1\n```", "x = 1"),
            ("chart", {"title": "趋势", "data_summary": "上升"}, "[图表: 趋势] 上升", "[图表: 趋势] 上升"),
            ("image", {"url": "https://h/a.png", "alt": "Logo"}, "![Logo](https://h/a.png)", "[image: about it]"),
            ("image", {"description": "标志"}, "[图片: 标志]", "[图片: 标志]"),
            ("link", {"text": "年报", "url": "https://h/r"}, "[年报](https://h/r)", "年报 (https://h/r)"),
            ("formula", {"expression": "E = mc^2"}, "$ E = mc^2 $", "E = mc^2"),
            ("video", {"text": "not shown"}, "[video: about it]", "[video: about it]"),
        )
    ],
)
def test_an_element_is_rendered_by_the_rule_of_its_category(
    category: str, content: dict[str, Any], markdown: str, text: str
) -> None:
    element = {"category": category, "summary": "about it", "content": content}
    assert rendered(element, markdown=True) == markdown
    assert rendered(element, markdown=False) == text


@pytest.mark.rule("answers.finder.markdown.misfit")
@pytest.mark.parametrize("category", ["heading", "text", "table", "list", "code", "chart", "image", "link", "formula"])
@pytest.mark.parametrize("content", [None, 7, {}, {"text": 7, "items": 7, "rows": 7, "url": 7, "code": None}])
def test_content_that_does_not_fit_its_category_is_rendered_like_any_other(category: str, content: object) -> None:
    assert rendered({"category": category, "summary": "s", "content": content}, markdown=True) == f"[{category}: s]"


@pytest.mark.rule("answers.finder.markdown.escaped")
def test_markup_in_a_document_is_text_in_its_markdown() -> None:
    element = {"category": "text", "content": {"text": "# a *b* | [c](d)"}}
    assert rendered(element, markdown=True) == r"\# a \*b\* \| \[c\](d)"
    assert rendered(element, markdown=False) == "# a *b* | [c](d)"


@pytest.mark.rule(
    "finder.categories.{text,heading,list,code,table,pivot_table,chart,diagram,image,formula,link}",
    "finder.categories.{annotation,header,footer,separator,audio,video,form,widget}",
)
@pytest.mark.parametrize("category", ELEMENT_CATEGORIES)
def test_the_19_categories_are_known(category: str) -> None:
    assert list(unknown_categories({"category": category})) == []
    assert list(unknown_categories({"elements": [{"category": category}]})) == []


@pytest.mark.rule("answers.finder.categories.sent")
def test_an_unknown_category_is_a_warning_for_each_one_and_its_elements_are_kept() -> None:
    elements = [{"category": each} for each in ("hologram", "text", "scent", "hologram")] + [{}, {"category": 7}]
    page = {"page_index": 0, "elements": elements}
    assert list(unknown_categories(page)) == [
        "'hologram' is none of the categories of elements; it is kept",
        "'scent' is none of the categories of elements; it is kept",
        "an element has no category; it is kept",
    ]


def test_only_the_first_of_many_unknown_categories_are_named() -> None:
    page = {"elements": [{"category": f"x{number}"} for number in range(1000)]}
    assert len(list(unknown_categories(page))) == 20


def test_a_single_element_is_checked_too() -> None:
    (warning,) = unknown_categories({"category": "x" * 10_000})
    assert len(warning) < 200


@pytest.mark.parametrize(
    "answer", [None, 7, "x", [], {}, {"elements": None}, {"elements": {"category": "x"}}, CATALOG, DOCUMENT]
)
def test_an_answer_without_elements_has_no_categories(answer: object) -> None:
    assert list(unknown_categories(answer)) == []
