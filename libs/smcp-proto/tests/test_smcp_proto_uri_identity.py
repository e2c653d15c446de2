"""The part of a URI that names a resource."""

import pytest

from smcp_proto.uris import scheme_of, without_query


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
