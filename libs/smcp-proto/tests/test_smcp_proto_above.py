"""The resources above a URI."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.uris import MAX_ABOVE, resources_above


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
