"""Elements as Markdown, read by a real Markdown parser: what was in them comes back, and nothing else is made of it."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from smcp_testing.dpe.markdown import element_markdown, page_markdown

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])

special = st.text("#-+*_=~>`|[]()<!&$:\\.1 2a中\n\"'{}%/^@;x\t", max_size=30)
readable = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp"), include_characters=" \n"), max_size=30
)
texts = special | readable
SNARES = [
    "# no heading", "#", "####### seven", "- no list", "-", "+ x", "* x", "1. no list", "12) x", "1.", "> no quotation",
    "---", "- - -", "***", "___", "a\n===", "a\n---", "a\n-", "=", "```", "```py\nx\n```", "~~~", "    code", "\tcode",
    "a | b\n--- | ---", "a|b\n:-", "a\n:--:|:-:", "|a|\n|-|", "*a*", "**a**", "_a_", "__a__", "a_b_c", "a__b__c", "_a",
    "a_", "~~a~~", "`a`", "``", "a`b", "[a](b)", "[a]: b", "![a](b)", "[a][b]", "[^1]", "<b>", "</b>", "<!-- x -->",
    "<http://x>", "<a@b.c>", "&amp;", "&#35;", "&copy", "a & b", "\\", "\\\\", "a\\\nb", "a  \nb", "\\*a", "$x$", "$$",
    "a\r\nb\rc", "a\\|b", "\\|", "<br>", "a#", "a #", "# #", "x\\#", "1.5", "-5", "a - b", "C:\\dir", "!", "![", "](",
    "a\n\n\n\nb", "\n\na", "a\n# b", "a\n1. b", "a\n> b", "a\n- b", "a\n    b", "[x] done", "{.a}", ": x", "a\n: b",
]  # fmt: skip


def children(markdown: str) -> list[SyntaxTreeNode]:
    return SyntaxTreeNode(PARSER.parse(markdown)).children


def text_of(node: SyntaxTreeNode) -> str:
    """The text of a block, which has nothing but text and line breaks in it."""
    (inline,) = node.children
    return "".join(said(inline.children))


def said(nodes: list[SyntaxTreeNode]) -> Iterator[str]:
    for node in nodes:
        if node.type == "html_inline":
            assert node.content == "<br>"
            yield "\n"
        else:
            assert node.type in ("text", "softbreak"), node.type
            yield "\n" if node.type == "softbreak" else node.content


def lines(text: str) -> list[str]:
    return [line.strip(" \t") for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]


def one_line(text: str) -> str:
    return " ".join(line for line in lines(text) if line)


def paragraphs(text: str) -> list[str]:
    """What a text keeps in Markdown."""
    return [part.strip("\n") for part in "\n".join(lines(text)).split("\n\n") if part.strip("\n")]


def element(category: str, **content: Any) -> dict[str, Any]:
    return {"element_id": "e", "category": category, "summary": "s", "content": content}


# -- text


@pytest.mark.rule("finder.markdown.text", "answers.finder.markdown.escaped")
@pytest.mark.parametrize("text", SNARES)
def test_markup_in_a_text_is_read_back_as_text(text: str) -> None:
    blocks = children(element_markdown(element("text", text=text)))
    assert {block.type for block in blocks} <= {"paragraph"}
    assert [text_of(block) for block in blocks] == paragraphs(text)


@pytest.mark.rule("finder.markdown.text")
@given(texts)
def test_paragraphs_and_lines_are_read_back(text: str) -> None:
    blocks = children(element_markdown(element("text", text=text)))
    assert {block.type for block in blocks} <= {"paragraph"}
    assert [text_of(block) for block in blocks] == paragraphs(text)


# -- headings


@pytest.mark.parametrize("text", SNARES)
def test_markup_in_a_heading_is_read_back_as_text(text: str) -> None:
    (block,) = children(element_markdown(element("heading", level=2, text=text)))
    assert (block.tag, text_of(block) if block.children else "") == ("h2", one_line(text))


@pytest.mark.rule("finder.markdown.heading")
@given(st.integers(1, 6), texts)
def test_a_heading_is_read_back_with_its_level(level: int, text: str) -> None:
    (block,) = children(element_markdown(element("heading", level=level, text=text)))
    assert (block.tag, text_of(block) if block.children else "") == (f"h{level}", one_line(text))


# -- tables


def cells(markdown: str) -> list[list[str]]:
    """The rows of the only block, which is a table; the first is its head."""
    (table,) = children(markdown)
    assert table.type == "table"
    return [[text_of(cell) for cell in row.children] for part in table.children for row in part.children]


def in_cell(text: str) -> str:
    return "\n".join(lines(text.strip()))


@pytest.mark.rule("finder.markdown.table")
@pytest.mark.parametrize("text", SNARES)
def test_markup_in_a_table_cell_is_read_back_as_text(text: str) -> None:
    markdown = element_markdown(element("table", headers=[text, "b"], rows=[["1", text], [text, text]]))
    assert cells(markdown) == [[in_cell(text), "b"], ["1", in_cell(text)], [in_cell(text)] * 2]


tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(texts, min_size=width, max_size=width), min_size=1, max_size=4)
)


@pytest.mark.rule("finder.markdown.table")
@given(tables)
@example([[""]])
@example([["", ""], ["", ""]])
@example([["|"], ["\\|"], ["`|`"]])
def test_the_cells_of_a_table_are_read_back(rows: list[list[str]]) -> None:
    markdown = element_markdown(element("table", headers=rows[0], rows=rows[1:]))
    assert cells(markdown) == [[in_cell(text) for text in row] for row in rows]


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ({"headers": ["a"], "rows": [["1", "2"], [], ["3"]]}, [["a", ""], ["1", "2"], ["", ""], ["3", ""]]),
        ({"rows": [["1", "2"]]}, [["", ""], ["1", "2"]]),
    ],
)
def test_rows_of_different_lengths_are_read_back_as_one_table(content: dict[str, Any], read: list[list[str]]) -> None:
    assert cells(element_markdown(element("table", **content))) == read


# -- lists

items = st.recursive(
    texts | st.builds(lambda text: {"text": text}, texts),
    lambda inner: st.builds(
        lambda text, below, ordered: {"text": text, "items": below, "ordered": ordered},
        texts,
        st.lists(inner, min_size=1, max_size=3),
        st.booleans(),
    ),
    max_leaves=6,
)


def outline(node: SyntaxTreeNode) -> tuple[str, list[Any]]:
    """The kind of a list, and of each item its paragraphs and the lists below it."""
    assert node.type in ("bullet_list", "ordered_list")
    found = []
    for item in node.children:
        below = [outline(each) for each in item.children if each.type != "paragraph"]
        found.append(([text_of(each) for each in item.children if each.type == "paragraph"], below))
    return node.type, found


def expected(content: dict[str, Any]) -> tuple[str, list[Any]]:
    found = []
    for item in content["items"]:
        text = item if isinstance(item, str) else item["text"]
        below = [expected(item)] if not isinstance(item, str) and item.get("items") else []
        found.append((paragraphs(text), below))
    return ("ordered_list" if content.get("ordered") else "bullet_list"), found


@pytest.mark.rule("finder.markdown.list")
@given(st.lists(items, min_size=1, max_size=4), st.booleans())
@example([{"text": "a", "items": [""]}, "b"], False)
@example(["", {"text": "", "items": ["", {"text": "", "items": ["x"]}]}], True)
@example(["a\n\nb", "-", "1."], False)
@example([str(number) for number in range(12)], True)
def test_lists_and_the_lists_in_them_are_read_back(content: list[Any], ordered: bool) -> None:
    whole = {"items": content, "ordered": ordered}
    (block,) = children(element_markdown(element("list", **whole)))
    assert outline(block) == expected(whole)


@pytest.mark.parametrize("text", SNARES)
def test_markup_in_a_list_item_is_read_back_as_text(text: str) -> None:
    whole = {"items": [text, {"text": "x", "items": [text]}, "y"]}
    (block,) = children(element_markdown(element("list", **whole)))
    assert outline(block) == expected(whole)


# -- code


@pytest.mark.rule("finder.markdown.code")
@given(texts | st.text("`\n a~", max_size=20), st.sampled_from(["", "python", "c++", "objective-c", "f#"]))
@example("```\ninside\n```", "md")
@example("`" * 10, "")
@example("", "")
@example("\n", "")
def test_code_is_read_back_whole(code: str, language: str) -> None:
    (block,) = children(element_markdown(element("code", code=code, language=language)))
    read = code.replace("\r\n", "\n").replace("\r", "\n")
    assert (block.type, block.info) == ("fence", language)
    assert block.content == (read if not read or read.endswith("\n") else read + "\n")


@given(texts)
def test_no_language_breaks_the_fence(language: str) -> None:
    (block,) = children(element_markdown(element("code", code="x\n", language=language)))
    assert (block.type, block.content) == ("fence", "x\n")
    assert set(block.info) <= set(language)


# -- links and images


def only_inline(markdown: str) -> SyntaxTreeNode:
    (paragraph,) = children(markdown)
    (inline,) = paragraph.children
    (node,) = inline.children
    return node


urls = st.text("abc()[]<>\\ &;=?#%25_*`'\"!|中\n", max_size=20).map(
    lambda tail: "https://h/" + tail.replace("%", "%25")
)


@pytest.mark.rule("finder.markdown.link")
@given(texts.filter(one_line), urls)
@example("a]b[c", "https://h/(x))y")
@example("a", "https://h/?a=1&amp;b=2&copy;=3")
def test_a_link_is_read_back_with_its_text_and_its_url(text: str, url: str) -> None:
    link = only_inline(element_markdown(element("link", text=text, url=url)))
    assert link.type == "link"
    assert "".join(said(link.children)) == one_line(text)
    assert unquote(str(link.attrs["href"])) == unquote(url)


@pytest.mark.rule("finder.markdown.image")
@given(texts, urls)
def test_an_image_is_read_back_with_its_description_and_its_url(text: str, url: str) -> None:
    image = only_inline(element_markdown(element("image", alt=text or "x", url=url)))
    assert image.type == "image"
    assert "".join(said(image.children)) == one_line(text or "x")
    assert unquote(str(image.attrs["src"])) == unquote(url)


# -- brackets


def only_text(markdown: str) -> str:
    (block,) = children(markdown)
    assert block.type == "paragraph"
    return text_of(block)


@pytest.mark.rule("finder.markdown.chart")
@given(texts, texts)
def test_the_bracket_of_a_chart_is_text(title: str, summary: str) -> None:
    markdown = element_markdown(element("chart", title=title or "t", data_summary=summary))
    assert only_text(markdown) == f"[图表: {one_line(title or 't')}] {one_line(summary)}".rstrip(" ")


@pytest.mark.rule("finder.markdown.image")
@given(texts.filter(one_line))
def test_the_bracket_of_an_image_is_text(description: str) -> None:
    assert only_text(element_markdown(element("image", description=description))) == f"[图片: {one_line(description)}]"


@pytest.mark.rule("finder.markdown.other")
@given(texts, texts)
def test_the_bracket_of_any_other_category_is_text(category: str, summary: str) -> None:
    markdown = element_markdown({"category": f"x{category}", "summary": summary})
    tail = f": {one_line(summary)}" if one_line(summary) else ""
    assert only_text(markdown) == f"[{one_line('x' + category)}{tail}]"


# -- pages

elements = st.one_of(
    st.builds(lambda text: element("heading", level=2, text=text), texts),
    st.builds(lambda text: element("text", text=f"x{text}"), texts),
    st.builds(lambda text, ordered: element("list", items=[text], ordered=ordered), texts, st.booleans()),
    st.builds(lambda text: element("code", code=text), texts),
    st.builds(lambda text: element("table", headers=[text], rows=[[text]]), texts),
    st.builds(lambda text: element("chart", title=f"t{text}"), texts),
    st.builds(lambda text: {"category": "widget", "summary": text}, texts),
)


@pytest.mark.rule("answers.finder.markdown.escaped")
@given(st.lists(elements, max_size=5))
def test_elements_of_a_page_stay_separate(page: list[dict[str, Any]]) -> None:
    alone = [shape(node) for each in page for node in PARSER.parse(element_markdown(each))]
    together = [shape(node) for node in PARSER.parse(page_markdown(page)) if node.content.strip() != "<!-- -->"]
    assert together == alone


def shape(token: Token) -> tuple[Any, ...]:
    return token.type, token.tag, token.content, token.info, token.level


@pytest.mark.rule("answers.finder.markdown.escaped")
@pytest.mark.parametrize("ordered", [False, True])
def test_two_lists_in_a_row_stay_two(ordered: bool) -> None:
    one = element("list", items=["a"], ordered=ordered)
    kinds = [block.type for block in children(page_markdown([one, one]))]
    assert kinds == [kinds[0], "html_block", kinds[0]]
