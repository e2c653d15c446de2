"""Which server a URI belongs to: by list, by host, by template; and which of several is asked first."""

import pytest

from smcp_computer.resources.routing import Served, candidates, fits, template_candidates, template_host

DOCS = Served(
    "docs",
    {"dpe://com.docs/r1", "window://com.docs.view/main"},
    ("dpe://com.docs/{doc_ref}/pages/{page_index}", "dpe://com.more/{doc_ref}"),
)
FILES = Served("files", {"file:///a", "shared://1"}, ("file:///{path}",))
OTHER = Served("other", {"shared://1", "note://x?y=1"})
ALL = (FILES, OTHER, DOCS)


@pytest.mark.rule("computer.resources.computer.read")
@pytest.mark.parametrize(
    ("uri", "servers"),
    [
        ("dpe://com.docs/r1", ["docs"]),
        ("dpe://com.docs/r1?depth=pages", ["docs"]),
        ("dpe://com.docs/r1/pages/0", ["docs"]),
        ("dpe://com.docs/unknown", ["docs"]),
        ("dpe://com.docs", ["docs"]),
        ("DPE://com.docs/r1/pages/0", ["docs"]),
        ("dpe://com.more/x", ["docs"]),
        ("dpe://com.docs.view/x", ["docs"]),
        ("window://com.docs/other", ["docs"]),
        ("dpe://com.elsewhere/r1", []),
        ("dpe:///r1", []),
        ("dpe://", []),
        ("dpe:com.docs", []),
        ("dpe://com.docs/%zz", []),
        ("window://elsewhere", []),
        ("file:///a", ["files"]),
        ("file:///b/c", ["files"]),
        ("note://x?y=1", ["other"]),
        ("note://x", []),
        ("shared://1", ["files", "other"]),
        ("shared://2", []),
        ("", []),
        ("\x00", []),
        (":", []),
    ],
)
def test_a_uri_belongs_to_who_lists_it_or_its_host_or_a_template_of_it(uri: str, servers: list[str]) -> None:
    assert candidates(uri, ALL, []) == servers


@pytest.mark.rule("answers.resources.read.several")
def test_of_several_servers_the_one_used_last_comes_first_then_by_name() -> None:
    assert candidates("shared://1", ALL, ["other"]) == ["other", "files"]
    assert candidates("shared://1", ALL, ["other", "files"]) == ["files", "other"]
    assert candidates("shared://1", ALL, ["docs", "gone"]) == ["files", "other"]


def test_a_server_that_lists_a_uri_comes_alone_also_where_others_share_the_host() -> None:
    rival = Served("archive", {"dpe://com.docs/old"})
    assert candidates("dpe://com.docs/r1", (rival, DOCS), []) == ["docs"]
    assert candidates("dpe://com.docs/r9", (rival, DOCS), []) == ["archive", "docs"]


@pytest.mark.rule("answers.resources.read.document")
@pytest.mark.parametrize(
    ("uri", "servers"),
    [
        ("dpe://h/d1/pages/0", ["docs", "archive", "catalog"]),
        ("dpe://h/d1/elements/e?format=text", ["docs", "archive", "catalog"]),
        ("dpe://h/old/pages/3", ["archive", "docs", "catalog"]),
        ("DPE://h/d%31/pages/0", ["docs", "archive", "catalog"]),
        ("dpe://h/unknown/pages/0", ["archive", "docs", "catalog"]),
        ("dpe://h/unknown", ["archive", "docs", "catalog"]),
        ("window://h/d1", ["archive", "catalog", "docs"]),
    ],
)
def test_of_those_that_share_a_host_who_lists_the_document_comes_first_then_who_lists_the_catalog(
    uri: str, servers: list[str]
) -> None:
    docs = Served("docs", {"dpe://h/d1", "dpe://h"})
    archive = Served("archive", {"dpe://h/old", "dpe://h/"})
    catalog = Served("catalog", {"window://h/d1/pages"}, ("dpe://h/{doc_ref}/pages/{page_index}",))
    assert candidates(uri, (catalog, docs, archive), []) == servers


def test_the_server_used_last_comes_first_among_those_that_are_alike_only() -> None:
    docs, rival = Served("docs", {"dpe://h/d1"}), Served("archive", {"dpe://h/old"})
    assert candidates("dpe://h/d1/pages/0", (docs, rival), ["docs", "archive"]) == ["docs", "archive"]
    assert candidates("dpe://h/other/pages/0", (docs, rival), ["docs"]) == ["docs", "archive"]


@pytest.mark.rule("answers.resources.windows")
@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ("window://h/a", "window://h/a?priority=80"),
        ("window://h/a?priority=80", "window://h/a?priority=80"),
        ("window://h/a?priority=1", "window://h/a?priority=80"),
        ("WINDOW://h/%61", "window://h/a?priority=80"),
        ("window://h/b?x=1", "window://h/b"),
        ("window://h/c%2fd", "window://h/c%2Fd"),
    ],
)
def test_a_window_is_known_by_host_and_path_and_asked_for_as_its_server_lists_it(asked: str, listed: str) -> None:
    rival = Served("archive", ("window://h/other", "window://h"))
    view = Served("view", ("window://h/a?priority=80", "window://h/a?priority=9", "window://h/b", "window://h/c%2Fd"))
    assert candidates(asked, (rival, view), []) == ["view"]
    assert view.listed(asked) == listed
    assert rival.listed(asked) is None


def test_a_uri_of_another_scheme_is_asked_for_unchanged() -> None:
    assert DOCS.listed("dpe://com.docs/r1?depth=pages") == "dpe://com.docs/r1?depth=pages"
    assert DOCS.listed("dpe://com.docs/unknown") is None
    assert OTHER.listed("note://x?y=1") == "note://x?y=1"
    assert OTHER.listed("note://x") is None
    assert OTHER.listed("window://%zz") is None


@pytest.mark.rule("answers.resources.read.host")
@pytest.mark.parametrize(
    ("template", "uri", "fit"),
    [
        ("file:///{path}", "file:///a/b", True),
        ("file:///{path}", "files:///a", False),
        ("x://{a}/y/{b}/z", "x://1/y/2/z", True),
        ("x://{a}/y/{b}/z", "x://1/y/z", False),
        ("x://{a}/y/{b}/z", "x://1/n/2/z", False),
        ("x://fixed", "x://fixed", True),
        ("x://fixed", "x://fixed/more", False),
        ("aba{x}aba", "aba", False),
        ("aba{x}aba", "abaaba", True),
        ("{anything}", "x://1", True),
        ("x://{broken", "x://1", True),
        ("x://" + "{a}b" * 400, "x://" + "b" * 8000 + "c", False),
    ],
)
def test_a_template_fits_where_its_fixed_parts_stand_in_order(template: str, uri: str, fit: bool) -> None:
    assert fits(template, uri) is fit


def test_the_host_of_a_template_is_known_where_it_is_fixed() -> None:
    assert template_host("dpe://com.docs/{doc_ref}") == "com.docs"
    assert template_host("window://com.docs{/path*}") is None
    assert template_host("dpe://{host}/x") is None
    assert template_host("file:///{path}") is None


def test_a_template_is_completed_by_who_lists_it_or_shares_its_host() -> None:
    assert template_candidates("file:///{path}", ALL, [], {}) == ["files"]
    assert template_candidates("dpe://com.docs/{doc_ref}/elements/{element_id}", ALL, [], {}) == ["docs"]
    assert template_candidates("dpe://com.elsewhere/{doc_ref}", ALL, [], {}) == []


PAGES = "dpe://h/{doc_ref}/pages/{page_index}"


@pytest.mark.rule("answers.resources.completion.chosen")
@pytest.mark.parametrize(
    ("template", "chosen", "servers"),
    [
        (PAGES, {}, ["archive", "docs"]),
        (PAGES, {"doc_ref": "d1"}, ["docs"]),
        (PAGES, {"doc_ref": "é/1"}, ["archive"]),
        (PAGES, {"doc_ref": "unknown"}, ["archive", "docs"]),
        (PAGES, {"page_index": "d1"}, ["archive", "docs"]),
        ("dpe://h/{doc}", {"doc": "d1"}, ["docs"]),
        ("dpe://{host}/{doc_ref}", {"doc_ref": "d1"}, []),
        ("file:///{doc_ref}", {"doc_ref": "d1"}, []),
    ],
)
def test_of_several_servers_that_complete_a_template_those_come_alone_that_list_the_chosen_document(
    template: str, chosen: dict[str, str], servers: list[str]
) -> None:
    docs, archive = Served("docs", {"dpe://h/d1"}, (PAGES,)), Served("archive", {"dpe://h/%C3%A9%2F1"}, (PAGES,))
    assert template_candidates(template, (docs, archive), [], chosen) == servers
