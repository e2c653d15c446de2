"""Properties of any catalog (finder.txt, Finder Organizer 策略)."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.finder import Document, organize_finder
from smcp_proto.sorting import fold, instant


def document(server: str, name: str, **fields: Any) -> Document:
    made, _ = Document.of(server, {"uri": f"dpe://com.example.{server}/{name}", **fields})
    assert made is not None
    return made


texts = st.text("aAbß財财é\u0301İﬁ\0 ", max_size=5)
moments = st.none() | st.sampled_from(["2026-01-15T08:00:00+08:00", "2026-01-15", "2025-06-01T12:00:00Z", "soon"])
libraries = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        texts,
        st.lists(texts, max_size=2),
        texts,
        moments,
        st.sampled_from(["pdf", "PDF", "txt"]),
    ),
    max_size=12,
).map(
    lambda rows: [
        document(server, str(index), title=title, keywords=keywords, summary=summary, last_modified=at, file_type=kind)
        for index, (server, title, keywords, summary, at, kind) in enumerate(rows)
    ]
)
asked = st.none() | st.lists(texts, max_size=3)
histories = st.lists(st.sampled_from(["a", "b", "c", "gone"]), max_size=5).map(tuple)


@pytest.mark.rule("finder.organize.flow.order", "finder.organize.input")
@given(libraries, asked, st.sampled_from([None, "pdf", "doc"]), histories)
def test_a_catalog_follows_the_four_steps(
    library: list[Document], keywords: list[str] | None, file_type: str | None, history: tuple[str, ...]
) -> None:
    """The page, word by word and slowly."""
    wanted = [keyword for keyword in keywords or [] if keyword]
    left = [
        each
        for each in library
        if not wanted
        or any(
            fold(keyword) in fold(field)
            for keyword in wanted
            for field in (each.summary["title"], *each.summary["keywords"], each.summary["summary"])
        )
    ]
    left = [each for each in left if file_type is None or each.summary["file_type"].lower() == file_type]
    recent = list(dict.fromkeys(history[::-1]))
    servers = recent + sorted({each.server for each in left} - set(recent))

    def key(each: Document) -> tuple[int, bool, int]:
        at = instant(each.summary.get("last_modified", ""))
        return servers.index(each.server), at is None, -(at or 0)

    made = organize_finder(library, keywords, file_type, history)
    assert made.documents == [each.summary for each in sorted(left, key=key)]
    assert made.total_count == len(left)


@pytest.mark.rule("finder.organize.4.total", "finder.reason.data")
@given(libraries, asked, histories, st.integers(1, 5))
def test_consecutive_pages_give_the_whole_catalog(
    library: list[Document], keywords: list[str] | None, history: tuple[str, ...], limit: int
) -> None:
    whole = organize_finder(library, keywords, None, history)
    pages = [
        organize_finder(library, keywords, None, history, offset=offset, limit=limit).documents
        for offset in range(0, len(library) + 1, limit)
    ]
    assert [each for page in pages for each in page] == whole.documents


@given(st.text(), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_the_unicode_normal_form_of_a_text_does_not_matter(text: str, form: Any) -> None:
    assert fold(unicodedata.normalize(form, text)) == fold(text)
