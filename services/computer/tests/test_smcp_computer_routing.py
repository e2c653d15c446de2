"""The server of a URI, found by its list, its host or its templates; and the order of several."""

from collections.abc import Collection, Iterator, Sequence

import pytest

from smcp_computer.resources.index import Names
from smcp_computer.resources.routing import Served, candidates, fits, template_candidates, template_host


def served(server: str, uris: Collection[str], templates: Sequence[str] = ()) -> Served:
    return Served(server, uris, Names(uris), templates)


DOCS = served(
    "docs",
    {"dpe://com.docs/r1", "window://com.docs.view/main"},
    ("dpe://com.docs/{doc_ref}/pages/{page_index}", "dpe://com.more/{doc_ref}"),
)
FILES = served("files", {"file:///a", "shared://1"}, ("file:///{path}",))
OTHER = served("other", {"shared://1", "note://x?y=1"})
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
def test_a_uri_is_served_by_the_server_of_its_list_or_host_or_template(uri: str, servers: list[str]) -> None:
    assert candidates(uri, ALL, []) == servers


@pytest.mark.rule("answers.resources.read.several")
def test_several_servers_are_ordered_by_last_use_then_by_name() -> None:
    assert candidates("shared://1", ALL, ["other"]) == ["other", "files"]
    assert candidates("shared://1", ALL, ["other", "files"]) == ["files", "other"]
    assert candidates("shared://1", ALL, ["docs", "gone"]) == ["files", "other"]


def test_a_server_that_lists_a_uri_is_preferred_to_servers_with_the_same_host() -> None:
    rival = served("archive", {"dpe://com.docs/old"})
    assert candidates("dpe://com.docs/r1", (rival, DOCS), []) == ["docs"]
    assert candidates("dpe://com.docs/r9", (rival, DOCS), []) == ["archive", "docs"]


@pytest.mark.rule("answers.resources.read.document")
@pytest.mark.parametrize(
    ("uri", "servers"),
    [
        ("dpe://h/d1/pages/0", ["docs"]),
        ("dpe://h/d1/elements/e?format=text", ["docs"]),
        ("dpe://h/old/pages/3", ["archive"]),
        ("dpe://h/unknown/pages/0", ["archive", "catalog", "docs"]),
        ("dpe://h/unknown", ["archive", "catalog", "docs"]),
        ("window://h/d1", ["archive", "catalog", "docs"]),
    ],
)
def test_a_document_is_routed_to_its_lister_among_servers_with_one_host(uri: str, servers: list[str]) -> None:
    docs, archive = served("docs", {"dpe://h/d1", "dpe://h"}), served("archive", {"dpe://h/old", "dpe://h/"})
    catalog = served("catalog", {"window://h/d1/pages"}, ("dpe://h/{doc_ref}/pages/{page_index}",))
    assert candidates(uri, (catalog, docs, archive), []) == servers


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
def test_a_window_is_found_by_host_and_path_whatever_its_query(asked: str, listed: str) -> None:
    rival = served("archive", ("window://h/other", "window://h"))
    view = served("view", ("window://h/a?priority=80", "window://h/a?priority=9", "window://h/b", "window://h/c%2Fd"))
    assert candidates(asked, (rival, view), []) == ["view"]
    assert view.listed(asked) == listed
    assert rival.listed(asked) is None


class NotWalked(frozenset[str]):
    """A list that may be long: to look at each of its URIs takes too long."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError


def test_a_window_and_a_host_are_found_without_a_walk_over_the_list() -> None:
    listed = {"window://h/a?priority=80", "dpe://docs/d1"}
    view = Served("view", NotWalked(listed), Names(listed))
    assert view.listed("window://h/a") == "window://h/a?priority=80"
    assert view.listed("window://h/b") is None
    assert (view.has_host("h"), view.has_host("docs"), view.has_host("other")) == (True, True, False)


def test_only_the_query_of_a_document_may_differ_from_the_listed_uri() -> None:
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
def test_a_template_fits_a_uri_with_its_fixed_parts_in_order(template: str, uri: str, fit: bool) -> None:
    assert fits(template, uri) is fit


def test_a_template_has_a_host_only_if_its_host_is_fixed() -> None:
    assert template_host("dpe://com.docs/{doc_ref}") == "com.docs"
    assert template_host("window://com.docs{/path*}") is None
    assert template_host("dpe://{host}/x") is None
    assert template_host("file:///{path}") is None


def test_a_template_is_completed_by_a_server_that_lists_it_or_has_its_host() -> None:
    assert template_candidates("file:///{path}", ALL, []) == ["files"]
    assert template_candidates("dpe://com.docs/{doc_ref}/elements/{element_id}", ALL, []) == ["docs"]
    assert template_candidates("dpe://com.elsewhere/{doc_ref}", ALL, []) == []
