"""Elements as Markdown and as text, row by row of the table (finder.txt, Markdown 渲染规则)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.schemas import ELEMENT_CATEGORIES
from smcp_testing.dpe.content import MAX_DEPTH
from smcp_testing.dpe.markdown import element_markdown, page_markdown
from smcp_testing.dpe.text import element_text, page_text

WITH_A_RULE = {"heading", "text", "table", "list", "code", "chart", "image", "link", "formula"}
WITHOUT = [category for category in ELEMENT_CATEGORIES if category not in WITH_A_RULE]
QUARTERS = {"headers": ["季度", "收入(万元)"], "rows": [["Q1", "1,250"], ["Q2", "1,380"]]}


def element(category: str, content: Any = None, summary: str = "about it") -> dict[str, Any]:
    return {"element_id": "e", "category": category, "summary": summary, "content": content}


def nested(depth: int) -> Any:
    return "deep" if depth == 0 else [nested(depth - 1)]


@pytest.mark.rule("finder.markdown.heading")
@pytest.mark.parametrize(("level", "marks"), [(1, "#"), (2, "##"), (3, "###"), (6, "######")])
def test_a_heading_has_as_many_marks_as_its_level(level: int, marks: str) -> None:
    assert element_markdown(element("heading", {"level": level, "text": "总结"})) == f"{marks} 总结"


@pytest.mark.parametrize(("level", "marks"), [(0, "#"), (-3, "#"), (7, "######"), ("2", "#"), (None, "#"), (1.5, "#")])
def test_a_heading_level_beyond_markdown_becomes_the_nearest_one(level: object, marks: str) -> None:
    assert element_markdown(element("heading", {"level": level, "text": "总结"})) == f"{marks} 总结"


def test_a_heading_without_text_is_its_marks() -> None:
    assert element_markdown(element("heading", {"level": 2, "text": ""})) == "##"


@pytest.mark.rule("finder.markdown.text")
def test_text_keeps_its_lines_and_paragraphs() -> None:
    assert element_markdown(element("text", {"text": "一\n二\n\n三"})) == "一\n二\n\n三"


@pytest.mark.rule("finder.markdown.table")
def test_a_table_is_a_table() -> None:
    assert element_markdown(element("table", QUARTERS)) == (
        "| 季度 | 收入(万元) |\n| --- | --- |\n| Q1 | 1,250 |\n| Q2 | 1,380 |"
    )


def test_a_line_break_in_a_cell_does_not_break_the_table() -> None:
    markdown = element_markdown(element("table", {"headers": ["a"], "rows": [["one\ntwo | three"]]}))
    assert markdown == "| a |\n| --- |\n| one<br>two \\| three |"


@pytest.mark.parametrize(
    ("content", "markdown"),
    [
        ({"headers": ["a"], "rows": [["1", "2"], []]}, "| a |  |\n| --- | --- |\n| 1 | 2 |\n|  |"),
        ({"rows": [["1"]]}, "|  |\n| --- |\n| 1 |"),
        ({"rows": 7, "headers": "a"}, "| a |\n| --- |"),
        ({"headers": ["a"]}, "| a |\n| --- |"),
        (
            {"headers": ["a", "b"], "rows": [[1, None], [True, 1.5]]},
            "| a | b |\n| --- | --- |\n| 1 |  |\n| true | 1.5 |",
        ),
        ({"headers": ["a"], "rows": [[{"x": [1]}], "row"]}, '| a |\n| --- |\n| {"x": \\[1\\]} |\n| row |'),
    ],
)
def test_a_short_table_head_is_padded_and_values_are_written_as_text(content: object, markdown: str) -> None:
    assert element_markdown(element("table", content)) == markdown


@pytest.mark.rule("finder.markdown.list", "answers.finder.contents")
@pytest.mark.parametrize(
    ("content", "markdown"),
    [
        ({"items": ["a", "b"]}, "- a\n- b"),
        ({"items": ["a", "b"], "ordered": False}, "- a\n- b"),
        ({"items": ["a", "b"], "ordered": True}, "1. a\n2. b"),
        (["a", 2, None], "- a\n- 2\n-"),
        (["a", ["b"]], "- a\n-\n  - b"),
        ({"items": [{"text": "a", "items": ["b", "c"], "ordered": True}, "d"]}, "- a\n  1. b\n  2. c\n- d"),
        ({"items": ["a\nb"], "ordered": True}, "1. a\n   b"),
    ],
)
def test_a_list_is_ordered_or_not(content: object, markdown: str) -> None:
    assert element_markdown(element("list", content)) == markdown


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, 200])
def test_lists_in_lists_are_followed_to_a_bound(depth: int) -> None:
    markdown = element_markdown(element("list", nested(depth)))
    assert "deep" in markdown
    assert markdown.count("-") == min(depth, MAX_DEPTH)


@pytest.mark.rule("finder.markdown.code", "answers.finder.contents")
def test_code_stands_in_a_fence() -> None:
    assert element_markdown(element("code", {"code": "x = 1", "language": "python"})) == "```python\nx = 1\n```"
    assert element_markdown(element("code", {"text": "x\n"})) == "```\nx\n```"


@pytest.mark.rule("finder.markdown.code")
@pytest.mark.parametrize("run", [1, 2, 3, 4, 9])
def test_the_fence_is_longer_than_any_run_of_back_ticks_in_the_code(run: int) -> None:
    fence = "`" * max(3, run + 1)
    assert element_markdown(element("code", {"code": f"a {'`' * run} b"})) == f"{fence}\na {'`' * run} b\n{fence}"


@pytest.mark.rule("finder.markdown.chart")
def test_a_chart_is_its_title_and_what_its_data_say() -> None:
    content = {"chart_type": "line", "title": "季度收入趋势", "data_summary": "呈上升趋势"}
    assert element_markdown(element("chart", content)) == "[图表: 季度收入趋势] 呈上升趋势"


@pytest.mark.parametrize(
    ("content", "markdown"),
    [({"title": "t"}, "[图表: t]"), ({"data_summary": "d"}, "[图表: about it] d"), ({}, "[chart: about it]")],
)
def test_a_chart_may_lack_a_part(content: object, markdown: str) -> None:
    assert element_markdown(element("chart", content)) == markdown


@pytest.mark.rule("finder.markdown.image", "answers.finder.contents")
@pytest.mark.parametrize(
    ("content", "markdown"),
    [
        ({"url": "https://h/a.png", "alt": "Logo"}, "![Logo](https://h/a.png)"),
        ({"url": "https://h/a.png", "description": "d"}, "![d](https://h/a.png)"),
        ({"url": "https://h/a b(1).png"}, r"![about it](https://h/a%20b\(1\).png)"),
        ({"description": "公司标志"}, "[图片: 公司标志]"),
        ({"alt": "Logo"}, "[图片: Logo]"),
        ({}, "[image: about it]"),
    ],
)
def test_an_image_is_shown_by_its_url_or_described(content: object, markdown: str) -> None:
    assert element_markdown(element("image", content)) == markdown


@pytest.mark.rule("finder.markdown.link", "answers.finder.contents")
@pytest.mark.parametrize(
    ("content", "markdown"),
    [
        ({"text": "年报", "url": "https://h/r"}, "[年报](https://h/r)"),
        ({"url": "https://h/r"}, "[https://h/r](https://h/r)"),
        ({"text": "年报"}, "[link: about it]"),
    ],
)
def test_a_link_is_a_link(content: object, markdown: str) -> None:
    assert element_markdown(element("link", content)) == markdown


@pytest.mark.rule("finder.markdown.formula", "answers.finder.contents")
@pytest.mark.parametrize(
    ("expression", "markdown"),
    [
        ("E = mc^2", "$ E = mc^2 $"),
        (r"\frac{a_1}{b*c}", r"$ \frac{a_1}{b*c} $"),
        ("a $ b \\$ c", "$ a \\$ b \\$ c $"),
        ("a\nb", "$ a b $"),
    ],
)
def test_a_formula_stands_between_dollars_as_it_is(expression: str, markdown: str) -> None:
    assert element_markdown(element("formula", {"expression": expression})) == markdown


@pytest.mark.rule("finder.markdown.other")
@pytest.mark.parametrize("category", [*WITHOUT, "hologram"])
def test_any_other_category_is_its_name_and_its_summary(category: str) -> None:
    assert element_markdown(element(category, {"text": "not shown"})) == f"[{category}: about it]"
    assert element_text(element(category, {"text": "not shown"})) == f"[{category}: about it]"


def test_without_a_summary_the_name_of_the_category_is_left() -> None:
    assert element_markdown({"category": "separator"}) == "[separator]"
    assert element_text({"category": "separator", "summary": None}) == "[separator]"


@pytest.mark.rule("answers.finder.markdown.misfit")
@pytest.mark.parametrize("category", sorted(WITH_A_RULE))
@pytest.mark.parametrize("content", [None, 7, True, {}, {"text": 7, "items": 7, "rows": 7, "url": 7, "code": None}])
def test_contents_that_do_not_fit_their_category_are_rendered_like_any_other(category: str, content: object) -> None:
    assert element_markdown(element(category, content)) == f"[{category}: about it]"
    assert element_text(element(category, content)) == f"[{category}: about it]"


@pytest.mark.rule("answers.finder.contents")
@pytest.mark.parametrize("category", ["heading", "text", "code", "link", "formula"])
def test_a_content_that_is_a_text_itself_is_taken_for_it(category: str) -> None:
    assert "https://h" in element_markdown(element(category, "https://h"))
    assert element_text(element(category, "https://h")) == "https://h"


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, {"category": None}, {"category": 7, "summary": "s"}])
def test_an_element_without_a_category_renders_nothing(value: object) -> None:
    assert element_markdown(value) == ""
    assert element_text(value) == ""


def test_the_elements_of_a_page_stand_in_their_order_with_an_empty_line_between_them() -> None:
    page = [
        element("heading", {"level": 1, "text": "总结"}),
        element("text", {"text": ""}),
        None,
        element("text", {"text": "引言"}),
        element("table", QUARTERS),
    ]
    assert page_markdown(page) == f"# 总结\n\n引言\n\n{element_markdown(page[-1])}"
    assert page_text(page) == "总结\n\n引言\n\n季度\t收入(万元)\nQ1\t1,250\nQ2\t1,380"


@pytest.mark.parametrize(
    "line", ["-" * 100_000, "- " * 50_000, "`" * 100_000, ":" * 100_000, "#" * 100_000, "\\" * 100_000]
)
def test_a_long_line_of_marks_does_not_take_longer_than_others(line: str) -> None:
    """Within the time of a test: what is tried at each place of a line takes minutes for one of these."""
    assert element_markdown(element("text", {"text": f"{line}x"})).endswith("x")
    assert element_markdown(element("table", {"headers": [f"{line}x"]})).endswith("| --- |")


def test_a_wide_row_does_not_make_all_others_wide() -> None:
    markdown = element_markdown(element("table", {"rows": [["x"] * 20_000, *([["y"]] * 20_000)]}))
    assert len(markdown) < 1_000_000


def test_a_page_without_elements_is_empty() -> None:
    assert page_markdown([]) == ""
    assert page_text([]) == ""


@pytest.mark.parametrize(
    ("category", "content", "text"),
    [
        ("heading", {"level": 2, "text": "# a"}, "# a"),
        ("text", {"text": "a *b*\n\nc"}, "a *b*\n\nc"),
        ("table", {"headers": ["a\tb", "c\nd"], "rows": [["|", None]]}, "a b\tc d\n|\t"),
        ("list", {"items": ["a", {"text": "b\nc", "items": ["d"]}], "ordered": True}, "1. a\n2. b c\n  - d"),
        ("code", {"code": "```\nx", "language": "py"}, "```\nx"),
        ("code", {"text": "x"}, "x"),
        ("chart", {"title": "t", "data_summary": "d"}, "[图表: t] d"),
        ("chart", {"title": "t"}, "[图表: t]"),
        ("chart", {"data_summary": "d"}, "[图表: about it] d"),
        ("chart", {"chart_type": "line"}, "[chart: about it]"),
        ("image", {"url": "https://h/a.png", "alt": "Logo", "description": "d"}, "[图片: d]"),
        ("image", {"url": "https://h/a.png", "alt": "Logo"}, "[图片: Logo]"),
        ("image", {"url": "https://h/a.png"}, "[image: about it]"),
        ("link", {"text": "年报", "url": "https://h/r"}, "年报 (https://h/r)"),
        ("link", {"url": "https://h/r"}, "https://h/r"),
        ("formula", {"expression": "a_1"}, "a_1"),
    ],
)
def test_plain_text_output_is_not_escaped(category: str, content: object, text: str) -> None:
    assert element_text(element(category, content)) == text


keys = st.sampled_from(
    ["text", "level", "headers", "rows", "items", "ordered", "code", "language", "title", "data_summary", "url", "alt"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from([*ELEMENT_CATEGORIES, "hologram"]) | json_values, json_values, json_values)
def test_nothing_that_a_server_sends_raises(category: object, summary: object, content: object) -> None:
    value = {"category": category, "summary": summary, "content": content}
    assert isinstance(element_markdown(value), str)
    assert isinstance(element_text(value), str)
    assert isinstance(page_markdown([content, value]), str)
