"""Metadata of documents as servers send them, field by field (finder.txt, 元数据体系 and 步骤 1)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.finder import Document
from smcp_proto.schemas import DPEDocumentSummary
from smcp_proto.uris import DpeUri
from smcp_testing.substring import Part

URI = "dpe://com.example.docs/rpt-2026"
REPORT: dict[str, Any] = {
    "doc_ref": "rpt-2026",
    "uri": URI,
    "file_uri": "file:///data/reports/2026-annual.xlsx",
    "file_type": "xlsx",
    "title": "2026 年度报告",
    "page_count": 12,
    "keywords": ["财务", "年报"],
    "summary": "2026 年度财务与运营报告",
    "last_modified": "2026-01-15T08:30:00Z",
}


def read(summary: object, listed: str | None = None) -> tuple[dict[str, Any] | None, list[str]]:
    """What a catalog shows of it, and what is wrong."""
    document, found = Document.of("s", summary, listed=listed)
    return None if document is None else dict(document.summary), found


@pytest.mark.rule("finder.format.1.metadata")
def test_the_example_of_the_page_is_read_as_it_is() -> None:
    document, found = Document.of("s", REPORT)
    assert document is not None
    assert (document.server, document.uri, document.file_type) == ("s", DpeUri("com.example.docs", "rpt-2026"), "xlsx")
    assert document.summary == REPORT
    assert found == []


def test_a_uri_alone_is_a_document() -> None:
    assert read({"uri": URI}) == ({"uri": URI, "doc_ref": "rpt-2026"}, [])


@pytest.mark.rule("finder.organize.1.invalid")
@pytest.mark.parametrize(
    "uri",
    [
        "window://h/d",
        "file:///d",
        "",
        "dpe://",
        "dpe:///d",
        "dpe://h/%zz",
        "dpe://h/d/x",
        "dpe://h/d?limit=0",
        "dpe://h/d#x",
    ],
)
def test_a_document_whose_uri_is_invalid_is_skipped_with_a_warning(uri: str) -> None:
    assert read({**REPORT, "uri": uri}) == (None, [Part("it is skipped")])


@pytest.mark.rule("finder.organize.1.invalid")
@pytest.mark.parametrize("uri", [None, 7, ["dpe://h/d"]])
def test_a_document_without_a_uri_is_skipped_with_a_warning(uri: object) -> None:
    assert read({**REPORT, "uri": uri}) == (None, [Part("it is skipped")])


@pytest.mark.rule("answers.finder.metadata")
@pytest.mark.parametrize("uri", ["dpe://h", "dpe://h/", "dpe://h/d/pages/0", "dpe://h/d/elements/e"])
def test_an_entry_that_names_no_document_is_skipped_with_a_warning(uri: str) -> None:
    assert read({"uri": uri}) == (None, [Part("its URI is of level")])


@pytest.mark.parametrize("summary", [None, [], "text", 7, True, [REPORT]])
def test_metadata_that_are_no_object_are_skipped_with_a_warning(summary: object) -> None:
    assert read(summary) == (None, [Part("its metadata are ")])
    assert read(summary, listed=URI) == (None, [Part("its metadata are ")])


@pytest.mark.parametrize("query", ["?format=markdown", "?depth=pages&limit=5", "?"])
def test_a_query_in_the_uri_of_a_document_is_dropped_with_a_warning(query: str) -> None:
    assert read({"uri": URI + query}) == ({"uri": URI, "doc_ref": "rpt-2026"}, [Part("query: ")])


def test_a_page_can_be_named_by_adding_to_the_uri() -> None:
    assert read({"uri": f"{URI}/"}) == ({"uri": URI, "doc_ref": "rpt-2026"}, [])


def test_the_uri_stays_as_the_server_wrote_it() -> None:
    assert read({"uri": "dpe://h/a:b%2Fc"}) == ({"uri": "dpe://h/a:b%2Fc", "doc_ref": "a:b/c"}, [])


# -- the URI by which the document is listed


def test_the_listed_uri_replaces_a_missing_one_in_the_metadata() -> None:
    assert read({"title": "t"}, listed=URI) == ({"title": "t", "uri": URI, "doc_ref": "rpt-2026"}, [])


@pytest.mark.rule("answers.finder.listed")
@pytest.mark.parametrize("uri", ["dpe://h/other", "dpe://com.example.docs", f"{URI}/pages/0", "file:///x", 7])
def test_the_listed_uri_wins_over_a_different_one_in_the_metadata(uri: object) -> None:
    assert read({"uri": uri}, listed=URI) == ({"uri": URI, "doc_ref": "rpt-2026"}, [Part("have another URI")])


def test_another_way_to_write_the_same_uri_is_no_difference() -> None:
    assert read({"uri": "dpe://com%2Eexample.docs/rpt%2D2026?depth=pages"}, listed=URI)[1] == []


@pytest.mark.rule("answers.finder.listed")
def test_a_doc_ref_that_is_not_that_of_the_uri_is_a_warning_and_the_uri_counts() -> None:
    assert read({"uri": URI, "doc_ref": "other"}) == (
        {"uri": URI, "doc_ref": "rpt-2026"},
        [Part("doc_ref is not that of its URI")],
    )


# -- fields


@pytest.mark.rule("finder.metadata.document.{title,file_type,summary,last_modified,file_uri}")
@pytest.mark.parametrize("field", ["doc_ref", "file_uri", "file_type", "title", "summary", "last_modified"])
@pytest.mark.parametrize("value", [7, True, ["x"], {"x": "y"}])
def test_a_text_of_another_type_is_left_out_with_a_warning(field: str, value: object) -> None:
    assert read({"uri": URI, field: value}) == ({"uri": URI, "doc_ref": "rpt-2026"}, [Part("left out")])


@pytest.mark.rule("finder.metadata.document.page_count")
@pytest.mark.parametrize("value", ["12", 12.0, -1, True, [], float("nan")])
def test_an_invalid_page_count_is_left_out_with_a_warning(value: object) -> None:
    assert read({"uri": URI, "page_count": value}) == ({"uri": URI, "doc_ref": "rpt-2026"}, [Part("left out")])


@pytest.mark.parametrize("value", [0, 1, 10**9])
def test_a_page_count_is_kept(value: int) -> None:
    assert read({"uri": URI, "page_count": value}) == ({"uri": URI, "doc_ref": "rpt-2026", "page_count": value}, [])


@pytest.mark.parametrize("value", ["财务", 7, {"财务": 1}, True])
def test_keywords_that_are_no_list_are_left_out_with_a_warning(value: object) -> None:
    assert read({"uri": URI, "keywords": value}) == ({"uri": URI, "doc_ref": "rpt-2026"}, [Part("left out")])


@pytest.mark.rule("finder.metadata.document.keywords")
def test_only_the_text_keywords_are_kept() -> None:
    shown, rules = read({"uri": URI, "keywords": ["财务", 2026, None, "年报", ["x"]]})
    assert (shown, rules) == ({"uri": URI, "doc_ref": "rpt-2026", "keywords": ["财务", "年报"]}, [Part("left out")])


@pytest.mark.parametrize(
    "field", ["doc_ref", "file_uri", "file_type", "title", "page_count", "keywords", "summary", "last_modified"]
)
def test_null_is_the_same_as_missing(field: str) -> None:
    assert read({"uri": URI, field: None}) == ({"uri": URI, "doc_ref": "rpt-2026"}, [])


@pytest.mark.rule("answers.finder.last_modified.unreadable")
def test_a_last_modified_that_cannot_be_read_is_kept_with_a_warning() -> None:
    shown, rules = read({"uri": URI, "last_modified": "yesterday"})
    assert shown is not None
    assert (shown["last_modified"], rules) == ("yesterday", [Part("not an ISO 8601 instant")])


@pytest.mark.rule("answers.finder.metadata")
def test_unknown_fields_are_kept() -> None:
    assert read({"uri": URI, "author": {"name": "x"}, "rank": None}) == (
        {"uri": URI, "doc_ref": "rpt-2026", "author": {"name": "x"}, "rank": None},
        [],
    )


def test_the_index_of_pages_is_no_part_of_a_catalog() -> None:
    index = {"pages": [{"page_index": 0}], "page_offset": 0, "page_limit": 20, "page_total": 12}
    assert read({"uri": URI, **index, "content_markdown": "x", "content_text": "x"}) == (
        {"uri": URI, "doc_ref": "rpt-2026"},
        [],
    )


def test_the_servers_input_is_not_modified() -> None:
    summary = {"uri": f"{URI}?x", "title": 7, "pages": []}
    before = dict(summary)
    read(summary)
    assert summary == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from([*REPORT, "pages", "author"])
uris = st.sampled_from([URI, "dpe://h", f"{URI}?x", f"{URI}/", "x"]) | json_values
summaries = (
    st.builds(lambda found, uri: {**found, "uri": uri}, st.dictionaries(fields, json_values), uris) | json_values
)


@pytest.mark.rule("answers.finder.metadata")
@given(summaries, st.none() | st.sampled_from([URI, "dpe://h", "x"]))
def test_any_json_is_read_or_skipped_and_what_is_read_is_a_legal_summary(summary: object, listed: str | None) -> None:
    document, found = Document.of("s", summary, listed=listed)
    if document is None:
        assert found
    else:
        DPEDocumentSummary.model_validate(dict(document.summary))
        assert Document.of("s", document.summary)[0] == document
