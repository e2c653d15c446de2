"""The catalog, step by step as on the page (finder.txt, Finder Organizer 策略)."""

from typing import Any

import pytest
from pydantic import ValidationError

from smcp_proto.finder import Document, organize_finder
from smcp_proto.schemas import GetFinderReq, GetFinderRet
from smcp_proto.validation import malformed


def document(server: str, name: str, **fields: Any) -> Document:
    made, _ = Document.of(server, {"uri": f"dpe://com.example.{server}/{name}", **fields})
    assert made is not None
    return made


def names(
    documents: list[Document],
    keywords: list[str] | None = None,
    file_type: str | None = None,
    history: tuple[str, ...] = (),
    **page: int,
) -> list[str]:
    """The documents of one page, each with its server."""
    shown = organize_finder(documents, keywords, file_type, history, **page).documents
    return [str(each["uri"]).removeprefix("dpe://com.example.") for each in shown]


# -- step 1: filtering

LIBRARY = [
    document("a", "title", title="2026 年度报告"),
    document("a", "keywords", keywords=["财务", "Annual Report"]),
    document("a", "summary", summary="On the STRASSE, in ﬁnance"),
    document("a", "nothing"),
]


@pytest.mark.rule("finder.organize.flow.keywords", "answers.finder.keywords.empty")
@pytest.mark.parametrize("keywords", [None, [], [""], ["", ""]])
def test_without_keywords_all_documents_stand_in_the_catalog(keywords: list[str] | None) -> None:
    assert len(names(LIBRARY, keywords)) == 4


@pytest.mark.rule("finder.organize.1.keywords")
@pytest.mark.parametrize(
    ("keyword", "found"),
    [
        ("年度", ["a/title"]),
        ("财务", ["a/keywords"]),
        ("strasse", ["a/summary"]),
        ("2026 年度报告", ["a/title"]),
        ("none of them", []),
    ],
)
def test_a_keyword_is_looked_for_in_title_keywords_and_summary(keyword: str, found: list[str]) -> None:
    assert names(LIBRARY, [keyword]) == found


@pytest.mark.rule("answers.finder.keywords")
def test_a_keyword_may_be_a_part_of_a_word() -> None:
    assert names(LIBRARY, ["nnua"]) == ["a/keywords"]


@pytest.mark.rule("finder.organize.1.keywords")
def test_any_of_the_keywords_is_enough() -> None:
    assert names(LIBRARY, ["财务", "年度"]) == ["a/title", "a/keywords"]
    assert names(LIBRARY, ["none of them", "年度"]) == ["a/title"]


@pytest.mark.rule("answers.finder.keywords.empty")
def test_an_empty_keyword_is_ignored() -> None:
    assert names(LIBRARY, ["", "年度"]) == ["a/title"]


@pytest.mark.rule("answers.finder.keywords")
@pytest.mark.parametrize("keyword", ["STRASSE", "straße", "Finance", "ANNUAL report", "２０２６", "ＦＩＮance"])
def test_keywords_match_regardless_of_case_and_character_form(keyword: str) -> None:
    assert len(names(LIBRARY, [keyword])) == 1


@pytest.mark.rule("answers.finder.keywords")
@pytest.mark.parametrize("keyword", ["e\u0301te\u0301", "ÉTÉ", "\u00e9t\u00e9"])
def test_composed_and_decomposed_letters_are_the_same(keyword: str) -> None:
    assert names([document("a", "1", title="L'\u00e9t\u00e9"), document("a", "2", title="Lete")], [keyword]) == ["a/1"]


@pytest.mark.rule("finder.organize.1.keywords")
@pytest.mark.parametrize("keyword", ["财务年报", "财务\n年报", "财务\0年报", "报告财务"])
def test_a_keyword_matches_within_one_field_only(keyword: str) -> None:
    assert names([document("a", "1", title="报告", keywords=["财务", "年报"], summary="总结")], [keyword]) == []


@pytest.mark.rule("finder.organize.1.keywords")
@pytest.mark.parametrize("field", ["uri", "doc_ref", "file_uri", "file_type", "author"])
def test_a_keyword_is_not_searched_in_other_fields(field: str) -> None:
    uri = {
        "uri": "dpe://h/needle",
        "doc_ref": "needle",
        "file_uri": "needle",
        "file_type": "needle",
        "author": "needle",
    }
    made, _ = Document.of("a", {"uri": "dpe://h/d", **({} if field == "doc_ref" else {field: uri[field]})})
    assert made is not None
    assert names([made], ["needle"]) == []


@pytest.mark.rule("finder.organize.1.file_type", "answers.finder.file_type")
@pytest.mark.parametrize("file_type", ["xlsx", "XLSX", "Xlsx", ".xlsx", "ｘｌｓｘ"])
def test_a_file_type_is_the_whole_one_whatever_its_case(file_type: str) -> None:
    documents = [document("a", kind or "none", file_type=kind) for kind in ("xlsx", ".XLSX", "xls", "pdf", "", None)]
    assert names(documents, None, file_type) == ["a/xlsx", "a/.XLSX"]


@pytest.mark.rule("finder.organize.flow.file_type")
@pytest.mark.parametrize("file_type", [None, ""])
def test_without_a_file_type_all_documents_stand_in_the_catalog(file_type: str | None) -> None:
    assert len(names([document("a", "1", file_type="pdf"), document("a", "2")], None, file_type)) == 2


@pytest.mark.rule("finder.organize.flow.file_type")
def test_keywords_and_file_type_apply_both() -> None:
    documents = [
        document("a", "1", title="report", file_type="pdf"),
        document("a", "2", title="report", file_type="xlsx"),
        document("a", "3", title="slides", file_type="xlsx"),
    ]
    assert names(documents, ["report"], "xlsx") == ["a/2"]


# -- step 2: the order of the servers


@pytest.mark.rule("finder.organize.2.recent", "finder.organize.2.others")
def test_servers_used_last_come_first_and_the_others_by_name() -> None:
    documents = [document(server, "d") for server in ("d", "b", "c", "a")]
    assert names(documents, history=("b", "c", "b", "gone", "c")) == ["c/d", "b/d", "a/d", "d/d"]


# -- step 3: the order of a server's documents


@pytest.mark.rule("finder.organize.3.order")
def test_the_last_modified_document_comes_first_within_its_server_only() -> None:
    documents = [
        document("a", "old", last_modified="2024-01-01T00:00:00Z"),
        document("a", "new", last_modified="2026-01-01T00:00:00Z"),
        document("b", "newest", last_modified="2027-01-01T00:00:00Z"),
        document("a", "middle", last_modified="2025-01-01T00:00:00Z"),
    ]
    assert names(documents) == ["a/new", "a/middle", "a/old", "b/newest"]


@pytest.mark.rule("answers.finder.last_modified")
def test_instants_are_compared_whatever_their_offset() -> None:
    documents = [
        document("a", "1st", last_modified="2026-01-15T08:00:00+08:00"),  # 00:00 UTC
        document("a", "2nd", last_modified="2026-01-15T01:00:00Z"),
        document("a", "3rd", last_modified="2026-01-14T23:30:00-0330"),  # 03:00 UTC
    ]
    assert names(documents) == ["a/3rd", "a/2nd", "a/1st"]


def test_documents_of_one_instant_keep_the_order_of_the_list() -> None:
    same = ["2026-01-15T08:00:00+08:00", "2026-01-15T00:00:00Z", "2026-01-14T19:00:00-05:00"]
    documents = [document("a", name, last_modified=at) for name, at in zip("cab", same, strict=True)]
    assert names(documents) == ["a/c", "a/a", "a/b"]


@pytest.mark.rule("finder.organize.3.missing", "answers.finder.last_modified.unreadable")
def test_documents_without_a_readable_instant_stand_last_in_the_order_of_the_list() -> None:
    odd = [None, "yesterday", 7, "", "2026-13-01", "9"]
    documents = [document("a", str(index), last_modified=at) for index, at in enumerate(odd)]
    documents.insert(3, document("a", "known", last_modified="1970-01-01"))
    assert names(documents) == ["a/known", "a/0", "a/1", "a/2", "a/3", "a/4", "a/5"]


# -- step 4: pages

MANY = [document("a", f"{number:03}") for number in range(120)]


@pytest.mark.rule("finder.organize.4.offset", "finder.organize.4.limit")
def test_without_offset_and_limit_the_first_twenty_are_shown() -> None:
    assert names(MANY) == [f"a/{number:03}" for number in range(20)]


@pytest.mark.rule("finder.organize.4.offset")
@pytest.mark.parametrize(
    ("offset", "limit", "shown"),
    [
        (0, 1, range(1)),
        (5, 3, range(5, 8)),
        (100, 100, range(100, 120)),
        (119, 20, range(119, 120)),
        (120, 20, range(0)),
    ],
)
def test_offset_and_limit_choose_the_page(offset: int, limit: int, shown: range) -> None:
    assert names(MANY, offset=offset, limit=limit) == [f"a/{number:03}" for number in shown]


def test_a_page_may_begin_in_one_server_and_end_in_another() -> None:
    documents = [document(server, str(number)) for server in "abc" for number in range(3)]
    assert names(documents, offset=2, limit=5) == ["a/2", "b/0", "b/1", "b/2", "c/0"]


@pytest.mark.rule("finder.organize.4.total")
@pytest.mark.parametrize(("offset", "limit"), [(0, 1), (50, 20), (500, 100)])
def test_the_total_counts_what_matches_on_all_pages(offset: int, limit: int) -> None:
    documents = [*MANY, document("b", "other", title="other")]
    assert organize_finder(documents, None, None, (), offset=offset, limit=limit).total_count == 121
    assert organize_finder(documents, ["other"], None, (), offset=offset, limit=limit).total_count == 1


@pytest.mark.rule("finder.organize.4.limit", "answers.finder.range")
@pytest.mark.parametrize(
    ("page", "part"),
    [({"offset": -1}, "offset"), ({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"limit": -5}, "limit")],
)
def test_a_page_out_of_range_is_refused_and_named(page: dict[str, int], part: str) -> None:
    with pytest.raises(ValidationError) as refused:
        GetFinderReq.model_validate({"agent": "a", "req_id": "1", "computer": "pc", **page})
    assert malformed(refused.value).details["field"] == part


def test_documents_are_shown_as_their_servers_describe_them() -> None:
    made = organize_finder([document("a", "d", title="t", page_count=3, author="x")], None, None, ())
    assert made.documents == [
        {"uri": "dpe://com.example.a/d", "doc_ref": "d", "title": "t", "page_count": 3, "author": "x"}
    ]
    GetFinderRet.model_validate({"documents": made.documents, "total_count": made.total_count, "req_id": "r"})
