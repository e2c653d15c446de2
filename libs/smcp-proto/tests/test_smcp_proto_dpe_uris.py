"""dpe:// URIs, by the rules of finder.txt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.schemas import ELEMENT_CATEGORIES
from smcp_proto.uris import DEPTHS, FORMATS, DpeUri, parse_dpe_uri

HOST = "com.example.docs"
pieces = "/ ? & = pages elements format json depth limit offset categories table , 0 7 101 -1 %2F % doc # é \x00"
words = st.lists(st.sampled_from(pieces.split(" ")), max_size=12).map(lambda parts: f"dpe://{HOST}/{''.join(parts)}")


@given(st.text(max_size=60) | words)
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        assert parse_dpe_uri(text).host
    except ValueError:
        return


@pytest.mark.rule(
    "finder.{dpe.page,dpe.element,uri.doc_ref,practice.doc_ref,uri.sub_path,uri.level.0,uri.level.1}",
    "finder.{uri.level.2,uri.level.3,query.depth,query.offset,uri.example.0,uri.example.1,uri.example.2}",
    "finder.{uri.example.3,scope.uris}",
)
@pytest.mark.parametrize(
    ("text", "uri", "level"),
    [
        ("dpe://com.example.docs", DpeUri(HOST), 0),
        ("dpe://com.example.docs/", DpeUri(HOST), 0),
        ("dpe://com.example.docs/rpt-2026", DpeUri(HOST, "rpt-2026"), 1),
        ("dpe://com.example.docs/rpt-2026/", DpeUri(HOST, "rpt-2026"), 1),
        ("dpe://com.example.docs/rpt-2026/pages/0", DpeUri(HOST, "rpt-2026", page=0), 2),
        ("dpe://com.example.docs/rpt-2026/pages/0/", DpeUri(HOST, "rpt-2026", page=0), 2),
        ("dpe://com.example.docs/r/elements/e/", DpeUri(HOST, "r", element="e"), 3),
        ("dpe://com.example.docs/rpt-2026/pages/007", DpeUri(HOST, "rpt-2026", page=7), 2),
        (
            "dpe://com.example.docs/rpt-2026/elements/tbl-001",
            DpeUri(HOST, "rpt-2026", element="tbl-001"), 3),
        ("dpe://com.example.docs/a%2Fb/elements/x%2Fy", DpeUri(HOST, "a/b", element="x/y"), 3),
        ("dpe://com.example.docs/报告", DpeUri(HOST, "报告"), 1),
        ("dpe://com.example.docs/pages", DpeUri(HOST, "pages"), 1),
        (
            "dpe://com.example.docs/rpt-2026?depth=pages&offset=0&limit=10",
            DpeUri(HOST, "rpt-2026"), 1),
        (
            "dpe://com.example.docs/rpt-2026/pages/0?format=markdown",
            DpeUri(HOST, "rpt-2026", page=0), 2),
        (
            "dpe://com.example.docs/rpt-2026/pages/0?categories=table,pivot_table",
            DpeUri(HOST, "rpt-2026", page=0), 2),
        ("dpe://com.example.docs/d?rev=3&x", DpeUri(HOST, "d"), 1),
        ("dpe://com.example.docs/d?", DpeUri(HOST, "d"), 1),
    ],
)  # fmt: skip
def test_a_dpe_uri_is_read(text: str, uri: DpeUri, level: int) -> None:
    assert parse_dpe_uri(text) == uri
    assert uri.level == level


@pytest.mark.rule("finder.query.{format.default,depth.default,offset.default,limit.default,categories.default}")
@pytest.mark.parametrize("chosen", ["", "?format=json&depth=metadata&offset=0&limit=20", "/pages/0"])
def test_no_parameter_has_to_be_given_and_the_defaults_may_be(chosen: str) -> None:
    assert parse_dpe_uri(f"dpe://{HOST}/d{chosen}").doc_ref == "d"


@pytest.mark.rule(
    "finder.{uri.scheme,uri.host,uri.sub_path,query.depth,query.offset,query.limit,query.categories}",
    "finder.{check.scheme,check.host,check.sub_path,check.format,check.depth,check.offset,check.limit}",
    "finder.check.categories",
)
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("window://h/d", "scheme"),
        ("h/d", "scheme"),
        ("dpe://", "host"),
        ("dpe:///d", "host"),
        ("dpe://h:1/d", "host"),
        ("dpe://h//pages/0", "doc-ref"),
        ("dpe://h/%", "doc-ref"),
        ("dpe://h/d/pages", "sub-path"),
        ("dpe://h/d/pages/", "sub-path"),
        ("dpe://h/d/pages/-1", "sub-path"),
        ("dpe://h/d/pages/+1", "sub-path"),
        ("dpe://h/d/pages/x", "sub-path"),
        ("dpe://h/d/pages/١", "sub-path"),
        ("dpe://h/d/pages/1/2", "sub-path"),
        ("dpe://h/d/pages/" + "9" * 16, "sub-path"),
        ("dpe://h/d/elements", "sub-path"),
        ("dpe://h/d/elements/", "sub-path"),
        ("dpe://h/d/elements//", "sub-path"),
        ("dpe://h/d/elements/a/b", "sub-path"),
        ("dpe://h/d/elements/%", "sub-path"),
        ("dpe://h/d/elements/%FF", "sub-path"),
        ("dpe://h/d/chapters/1", "sub-path"),
        ("dpe://h/d?format=xml", "format"),
        ("dpe://h/d?format=", "format"),
        ("dpe://h/d?format", "format"),
        ("dpe://h/d?format=JSON", "format"),
        ("dpe://h/d?format=json&format=text", "format"),
        ("dpe://h/d?depth=all", "depth"),
        ("dpe://h/d?offset=-1", "offset"),
        ("dpe://h/d?offset=1.5", "offset"),
        ("dpe://h/d?offset=", "offset"),
        ("dpe://h/d?limit=0", "limit"),
        ("dpe://h/d?limit=101", "limit"),
        ("dpe://h/d?limit=ten", "limit"),
        ("dpe://h/d/pages/0?categories=", "categories"),
        ("dpe://h/d/pages/0?categories=table,,chart", "categories"),
        ("dpe://h/d/pages/0?categories=sheet", "categories"),
        ("dpe://h/d?=1", "query"),
        ("dpe://h/d?a=%0A", "query"),
        ("dpe://h/d?%0A=a", "query"),
        ("dpe://h/d?%=a", "query"),
        ("dpe://h/d#top", "fragment"),
        # a parameter where it has no meaning
        ("dpe://h?depth=pages", "depth"),
        ("dpe://h?limit=20", "limit"),
        ("dpe://h/d/pages/0?offset=0", "offset"),
        ("dpe://h/d/elements/e?depth=metadata", "depth"),
        ("dpe://h/d?categories=table", "categories"),
        ("dpe://h/d/elements/e?categories=table", "categories"),
    ],
)
def test_a_refusal_names_the_part(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=f"^{part}: "):
        parse_dpe_uri(text)


@pytest.mark.rule("finder.check.{format,depth,categories}", "answers.finder.categories.asked")
@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("dpe://h/d?format=xml", FORMATS),
        ("dpe://h/d?depth=all", DEPTHS),
        ("dpe://h/d/pages/0?categories=sheet", ELEMENT_CATEGORIES),
    ],
)
def test_a_refusal_names_what_may_be_chosen(text: str, choices: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f" {', '.join(choices)}$"):
        parse_dpe_uri(text)


def test_a_uri_is_read_up_to_8192_characters() -> None:
    longest = "dpe://h/".ljust(8192, "d")
    assert parse_dpe_uri(longest).doc_ref == "d" * (8192 - len("dpe://h/"))
    with pytest.raises(ValueError, match=r"^uri: "):
        parse_dpe_uri(longest + "d")


@pytest.mark.rule("finder.query.format")
@pytest.mark.parametrize("level_uri", ["dpe://h", "dpe://h/d", "dpe://h/d/pages/0", "dpe://h/d/elements/e"])
@pytest.mark.parametrize("chosen", FORMATS)
def test_format_is_for_every_level(level_uri: str, chosen: str) -> None:
    assert parse_dpe_uri(f"{level_uri}?format={chosen}") == parse_dpe_uri(level_uri)


@pytest.mark.rule(
    "finder.categories.{text,heading,list,code,table,pivot_table,chart,diagram,image,formula,link}",
    "finder.categories.{annotation,header,footer,separator,audio,video,form,widget}",
    "finder.query.categories",
)
@pytest.mark.parametrize("category", ELEMENT_CATEGORIES)
def test_each_category_may_be_asked_for(category: str) -> None:
    assert parse_dpe_uri(f"dpe://h/d/pages/0?categories={category}").page == 0


@pytest.mark.rule("finder.query.limit")
@pytest.mark.parametrize("limit", [1, 100])
def test_the_ends_of_the_range_of_limit_are_in_it(limit: int) -> None:
    assert parse_dpe_uri(f"dpe://h/d?limit={limit}").doc_ref == "d"
