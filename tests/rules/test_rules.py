"""Every rule of the protocol has a test: `docs/rules.toml` is whole, says what is open, and names what exists."""

from collections import Counter
from pathlib import Path

import pytest

from tests.rules.table import ANSWERS, PAGES, TestName, functions, headings, missing, read

RULES = read()["rule"]
OPEN = read().get("open", [])

SAMPLE = """
import pytest
pytestmark = [pytest.mark.timeout(3)]
def test_plain(): ...
@pytest.mark.parametrize("n", [1, 2])
async def test_both(n): ...
@pytest.mark.skip
def test_skipped(): ...
def test_gives_up():
    if True:
        pytest.skip("not here")
def maybe():
    pytest.importorskip("elsewhere")
def test_by_a_helper(): maybe()
def test_by_a_fixture(maybe): ...
def test_may_fail(): pytest.xfail()
def helper(): ...
class TestInside:
    def test_hidden(self): ...
"""


def test_a_rule_says_where_it_stands_what_it_is_and_what_holds_it() -> None:
    for rule in RULES:
        assert set(rule) == {"id", "page", "section", "rule", "tests"}, rule
        assert rule["tests"], f"{rule['id']} has no test"
    for rule in OPEN:
        assert set(rule) == {"id", "page", "section", "rule", "why"}, rule
    for rule in [*RULES, *OPEN]:
        assert rule["page"] in PAGES, rule["id"]
        assert rule["id"].startswith(f"{rule['page']}."), rule["id"]
        assert rule["section"], rule["id"]
        assert rule["rule"].endswith("."), f"{rule['id']}: a sentence ends with a full stop"


def test_no_rule_and_no_test_of_a_rule_stands_twice() -> None:
    assert [id_ for id_, count in Counter(rule["id"] for rule in [*RULES, *OPEN]).items() if count > 1] == []
    for rule in RULES:
        assert len(set(rule["tests"])) == len(rule["tests"]), rule["id"]


def test_every_test_that_a_rule_names_exists_and_runs(request: pytest.FixtureRequest) -> None:
    here = frozenset(item.nodeid for item in request.session.items)
    assert missing((TestName.parse(name) for rule in RULES for name in rule["tests"]), known=here) == []


def test_a_rule_of_our_answers_stands_under_a_heading_of_them() -> None:
    known = headings(ANSWERS)
    written = {rule["section"] for rule in [*RULES, *OPEN] if rule["page"] == "answers"}
    assert written - known == set()
    assert known - written == set(), "these answers have no rules"


def test_there_are_several_hundred_rules_and_each_page_has_its_own() -> None:
    pages = Counter(rule["page"] for rule in RULES)
    assert set(pages) == set(PAGES)
    assert sum(pages.values()) >= 600


def test_what_is_open_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{len(RULES)} rules of the protocol have a test; {len(OPEN)} are open:")  # noqa: T201 -- for CI's log
        for rule in OPEN:
            print(f"  {rule['id']}: {rule['rule']} ({rule['why']})")  # noqa: T201


def test_a_name_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    names = [
        TestName.parse(f"test_sample.py::{name}")
        for name in ("test_plain", "test_both[1]", "test_both[3]", "test_gone", "test_skipped", "test_hidden", "helper")
    ]
    assert missing([*names, TestName.parse("test_nowhere.py::test_x")], tmp_path) == [
        "test_nowhere.py::test_x: no such test",
        "test_sample.py::helper: no such test",
        "test_sample.py::test_both[3]: no such parameter",
        "test_sample.py::test_gone: no such test",
        "test_sample.py::test_hidden: no such test",
        "test_sample.py::test_skipped: marked skip",
    ]
    assert functions(tmp_path / "test_sample.py")["test_plain"] == {"timeout"}


def test_a_test_that_may_give_up_holds_no_rule(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    names = ["test_gives_up", "test_by_a_helper", "test_by_a_fixture", "test_may_fail", "test_plain"]
    assert missing([TestName.parse(f"test_sample.py::{name}") for name in names], tmp_path) == [
        "test_sample.py::test_by_a_fixture: marked skip",
        "test_sample.py::test_by_a_helper: marked skip",
        "test_sample.py::test_gives_up: marked skip",
        "test_sample.py::test_may_fail: marked xfail",
    ]
    (tmp_path / "test_whole.py").write_text('import pytest\npytest.importorskip("x")\ndef test_x(): ...\n')
    assert missing([TestName.parse("test_whole.py::test_x")], tmp_path) == ["test_whole.py::test_x: marked skip"]


@pytest.mark.parametrize("text", ["test_x.py", "test_x.py::", "test_x.py::a b", "test_x.py::test_y[z"])
def test_what_names_no_test_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the name of a test"):
        TestName.parse(text)
