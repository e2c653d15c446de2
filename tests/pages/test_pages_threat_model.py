"""Each line of the threat model names tests that exist."""

import re
from typing import Final

import pytest

from tests.pages.markdown import ROOT

LINES: Final = [
    line
    for line in (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.endswith("| shown by |")
]
NAMED: Final = re.compile(r"`(test_\w+)`")
DEFINED: Final = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


@pytest.fixture(scope="module")
def defined() -> set[str]:
    """The names of all tests."""
    files = [file for part in ("libs", "services", "tests") for file in (ROOT / part).rglob("test_*.py")]
    return {name for file in files for name in DEFINED.findall(file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip()[:40])
def test_each_line_names_existing_tests(line: str, defined: set[str]) -> None:
    named = set(NAMED.findall(line.rpartition("| ")[2]))
    assert named
    assert named - defined == set()
