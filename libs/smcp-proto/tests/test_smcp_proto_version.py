"""The version rule of the handshake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.catalog import refuse_version


@pytest.mark.rule("answers.connect.version.optional")
@pytest.mark.parametrize("version", [None, "0.2.0", "0.2.1", "0.3.0", "0.3.17", "0.4.0", "0.4.2", "0.4.999"])
def test_a_supported_version_is_accepted(version: str | None) -> None:
    assert refuse_version(version) is None


@pytest.mark.rule(
    "answers.connect.{version.form,version.refused.0.1.0,version.refused.0.5.0,version.refused.1.0.0}",
    "answers.connect.{refused.body.code,refused.body.message,refused.body.server_version}",
    "answers.connect.{refused.body.client_version,refused.body.min_supported,refused.body.max_supported}",
)
@pytest.mark.parametrize(
    "version",
    [
        "0.0.1", "0.1.0", "0.1.9", "0.5.0", "0.10.0", "0.20.0", "1.0.0", "1.2.0", "2.0.0", "10.3.0",
        "", "0.4", "0", "v0.4.0", "0.4.0-rc1", "0.4.0+build", "0.4.0.0", "0.4.x", " 0.4.0", "0.4.0 ", "0.4.0\n",
        "00.4.0", "0.04.0", "0.-4.0", "0.４.0", "0..4", "latest", "null",
    ],
)  # fmt: skip
def test_an_unsupported_version_is_refused_with_the_supported_range(version: str) -> None:
    refusal = refuse_version(version)
    assert refusal is not None
    body = refusal.model_dump()
    assert body.pop("message")
    assert body == {
        "code": 4008,
        "server_version": "0.4.0",
        "client_version": version,
        "min_supported": "0.2.0",
        "max_supported": "0.4.999",
    }


@pytest.mark.parametrize("version", ["", "0.4", "latest", "0.4.0 "])
def test_a_malformed_version_is_refused_with_the_expected_form(version: str) -> None:
    refusal = refuse_version(version)
    assert refusal is not None
    assert refusal.message == "a2c_version: a version is MAJOR.MINOR.PATCH"


def test_a_long_version_is_cut_in_the_answer() -> None:
    refusal = refuse_version("9" * 10_000)
    assert refusal is not None
    assert len(refusal.model_dump_json()) < 400


@pytest.mark.rule("answers.connect.version.range")
@given(st.integers(0, 999), st.integers(0, 999), st.integers(0, 999))
def test_major_and_minor_count_and_patch_does_not(major: int, minor: int, patch: int) -> None:
    version = f"{major}.{minor}.{patch}"
    assert (refuse_version(version) is None) == (major == 0 and 2 <= minor <= 4)


@pytest.mark.rule("answers.connect.version.form")
@given(st.text(max_size=30))
def test_any_text_is_a_version_or_refused(text: str) -> None:
    refusal = refuse_version(text)
    assert refusal is None or refusal.code == 4008
