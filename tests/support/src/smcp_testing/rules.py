"""Ties tests to the rules of the protocol: `@pytest.mark.rule("ID", …)` and the table `docs/rules.md`.

`"finder.uri.level.{0,1}"` stands for `"finder.uri.level.0"` and `"finder.uri.level.1"`.

`pytest --collect-only --rules FILE` writes the list of all rules with their tests, and fails when a rule has no test
or a mark names no rule. A mark may stand on a test, on one of its parameters, or on the scenario function that a
parameter is.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

TABLE: Final = Path(__file__).parents[4] / "docs" / "rules.md"
NEVER_RUN: Final = ("skip", "skipif", "xfail")
"""Marks of tests that may not run: they hold no rule."""


@dataclass(frozen=True)
class Rule:
    """One line of the table."""

    page: str
    section: str
    sentence: str


@cache
def read(path: Path = TABLE) -> Mapping[str, Rule]:
    """The rules by id. Raises ValueError for an id that stands twice, or a line that is not a row."""
    rules: dict[str, Rule] = {}
    page = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            page = line[3:]
        elif line.startswith("| ") and not line.startswith("| id "):
            id_, section, sentence = (cell.strip() for cell in line.strip("|").split(" | "))
            if id_ in rules or not section or not sentence.endswith("."):
                raise ValueError(f"docs/rules.md: not a row of its own: {line}")
            rules[id_] = Rule(page, section, sentence)
    return rules


def expanded(names: Sequence[str]) -> Iterator[str]:
    """The ids that a mark names."""
    for name in names:
        begin, _, choices = name.partition("{")
        yield from (begin + each for each in choices.removesuffix("}").split(","))


def rules_of(item: pytest.Item) -> Iterator[str]:
    """The ids that a collected test holds."""
    for mark in item.iter_markers("rule"):
        yield from expanded(mark.args)
    parameters: Mapping[str, Any] = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    for value in parameters.values():
        for mark in getattr(value, "pytestmark", ()):
            if mark.name == "rule":
                yield from expanded(mark.args)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rules", metavar="FILE", help="check that each rule of docs/rules.md has a test, and write the list"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs before tests are deselected, so that the list holds those of every command."""
    if not (target := config.getoption("--rules")) or session.testsfailed:  # a file that cannot be read is said alone
        return
    rules = read()
    tests: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(name) for name in NEVER_RUN):
            for id_ in rules_of(item):
                tests[id_].append(item.nodeid)
    unknown = [f"{id_}: marked on {tests[id_][0]}, not in docs/rules.md" for id_ in tests if id_ not in rules]
    untested = [f"{id_}: no test holds it" for id_ in rules if id_ not in tests]
    if wrong := [*unknown, *untested]:
        raise pytest.UsageError("\n".join(wrong))
    lines = [
        f"- `{id_}` {rule.sentence}" + "".join(f"\n  - {name}" for name in tests[id_]) for id_, rule in rules.items()
    ]
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    count = f"{len(rules)} rules have a test."
    Path(target).write_text("\n".join(["# The rules and their tests", "", count, "", *lines, ""]), encoding="utf-8")
