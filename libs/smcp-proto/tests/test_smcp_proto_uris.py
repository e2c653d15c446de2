"""The part of a URI that names a resource, the resources above it, and hosts that several MCP servers use."""

import random
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.uris import MAX_ABOVE, host_conflicts, host_of, resources_above, scheme_of, without_query


def conflicts(listed: Mapping[str, Iterable[str]]) -> list[tuple[str, tuple[str, ...]]]:
    """Of the URIs that each server lists."""
    hosts = {server: {host for uri in uris if (host := host_of(uri)) is not None} for server, uris in listed.items()}
    return list(host_conflicts(hosts))


@pytest.mark.rule("desktop.uri.host.unique", "desktop.uri.check.host.conflict", "answers.desktop.hosts")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("window://com.example/a", "window://com.example/b"),
        ("dpe://com.example/d", "dpe://com.example/d"),
        ("window://com.example", "dpe://com.example/d/pages/0"),
        ("window://com.example?query", "dpe://com%2Eexample"),
    ],
)
def test_a_host_of_two_servers_is_a_conflict(first: str, second: str) -> None:
    assert conflicts({"b": [first], "a": [second]}) == [("com.example", ("a", "b"))]


@pytest.mark.rule("desktop.uri.host.unique")
def test_a_server_does_not_conflict_with_itself() -> None:
    assert conflicts({"a": ["window://h/1", "window://h/2", "dpe://h/d"], "b": ["dpe://other/d"]}) == []


@pytest.mark.rule("desktop.uri.check.host.conflict")
def test_each_conflict_names_all_its_servers_once() -> None:
    listed = {
        "c": ["window://x/1", "window://x/2", "dpe://y/d"],
        "a": ["dpe://x/d"],
        "b": ["dpe://y"],
        "d": ["window://x"],
    }
    assert conflicts(listed) == [("x", ("a", "c", "d")), ("y", ("b", "c"))]


@pytest.mark.rule("desktop.uri.check.host.conflict")
@pytest.mark.parametrize(
    "uri", ["file://h/x", "https://h", "window:///a", "dpe://h/d/pages/x", "window", "", "dpe://h?format=x"]
)
def test_other_schemes_and_invalid_uris_have_no_host(uri: str) -> None:
    assert host_of(uri) is None
    assert conflicts({"a": [uri], "b": [uri]}) == []


@pytest.mark.parametrize("uri", ["WINDOW://h/a", "window://h/a:b", "Dpe://h/a%3Ab", "dpe://h"])
def test_a_host_is_read_for_any_path_and_any_case_of_the_scheme(uri: str) -> None:
    assert host_of(uri) == "h"


uris = st.sampled_from(["window://x", "window://y/a", "dpe://x/d", "dpe://z", "file://x", "%"])
lists = st.dictionaries(st.sampled_from("abcd"), st.lists(uris, max_size=4))


@given(lists, st.randoms(use_true_random=False))
def test_the_order_of_servers_and_uris_does_not_matter(listed: dict[str, list[str]], shuffle: random.Random) -> None:
    mixed = list(listed.items())
    shuffle.shuffle(mixed)
    assert conflicts({server: uris[::-1] for server, uris in mixed}) == conflicts(listed)


@given(st.text(max_size=30))
def test_any_text_has_a_host_or_none(text: str) -> None:
    host_of(text)
    host_of(f"window://{text}")
    host_of(f"dpe://{text}")


@pytest.mark.parametrize(
    ("uri", "scheme"),
    [
        ("dpe://host/doc", "dpe"),
        ("WINDOW://host/a:b", "window"),
        ("File:x:y", "file"),
        ("no scheme", "no scheme"),
        ("No Scheme", "no scheme"),
    ],
)
def test_a_scheme_ends_at_the_first_colon_and_is_compared_in_lower_case(uri: str, scheme: str) -> None:
    assert scheme_of(uri) == scheme


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("dpe://host/doc?level=1", "dpe://host/doc"),
        ("DPE://host/doc?level=1?more", "DPE://host/doc"),
        ("dpe://host/doc", "dpe://host/doc"),
        ("window://host/a?priority=1", "window://host/a"),
    ],
)
def test_the_query_of_a_window_or_dpe_uri_does_not_identify_it(uri: str, named: str) -> None:
    assert without_query(uri) == named


@pytest.mark.parametrize("uri", ["https://host/doc?id=1", "file:///a?b", "a?b"])
def test_the_query_of_any_other_uri_identifies_it(uri: str) -> None:
    assert without_query(uri) == uri


@pytest.mark.rule("answers.resources.subscribers.parts")
@pytest.mark.parametrize(
    ("uri", "above"),
    [
        ("dpe://host/doc/1", ["dpe://host/doc/", "dpe://host/doc", "dpe://host/", "dpe://host"]),
        ("dpe://host/doc?a=/b", ["dpe://host/doc", "dpe://host/", "dpe://host"]),
        ("dpe://host/doc/", ["dpe://host/doc", "dpe://host/", "dpe://host"]),
        ("file:///a/b", ["file:///a/", "file:///a", "file:///"]),
        ("dpe://host", []), ("urn:a/b", ["urn:a/", "urn:a"]), ("", []), ("?", [""]), ("a://b//", ["a://b/", "a://b"]),
    ],
)  # fmt: skip
def test_the_nearest_comes_first(uri: str, above: list[str]) -> None:
    assert list(resources_above(uri)) == above


@given(st.text(alphabet="a:/?#", max_size=40))
def test_each_parent_uri_is_a_prefix_and_listed_once(uri: str) -> None:
    above = list(resources_above(uri))
    assert above == sorted(set(above), key=len, reverse=True)
    assert all(uri.startswith(each) and len(each) < len(uri) for each in above)


def test_only_the_nearest_parents_of_a_very_long_uri_are_listed() -> None:
    above = list(resources_above("a://b" + "/c" * 4000))
    assert len(above) == MAX_ABOVE
    assert above[0] == "a://b" + "/c" * 3999 + "/"
