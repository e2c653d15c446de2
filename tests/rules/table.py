"""Reads `docs/rules.toml`, and finds out which tests there are."""

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "docs" / "rules.toml"
ANSWERS: Final = ROOT / "docs" / "protocol-answers.md"
PAGES: Final = ("events", "data-structures", "computer", "desktop", "finder", "answers")
COLLECT_S: Final = 100.0
UNSET: Final = ("PYTEST_", "COV", "CONTAINERS")
"""Variables of this run: with CONTAINERS a test among processes is left out for its twin in containers."""
NEVER_RUN: Final = frozenset({"skip", "skipif", "xfail", "soak"})
"""Marks of tests that do not run with all others, or may fail."""
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
GIVES_UP: Final = frozenset({"skip", "importorskip", "xfail"})
"""What a test that runs may call to be none."""


@dataclass(frozen=True)
class TestName:
    """`path::function`, or one parameter of it: `path::function[id]`."""

    __test__ = False

    path: str
    function: str
    parameter: str | None

    @classmethod
    def parse(cls, text: str) -> "TestName":
        """Raises ValueError where it is of another form."""
        path, separator, name = text.partition("::")
        function, bracket, parameter = name.partition("[")
        if not separator or not function.isidentifier() or (bracket and not parameter.endswith("]")):
            raise ValueError(f"not the name of a test: {text}")
        return cls(path, function, parameter[:-1] if bracket else None)

    def __str__(self) -> str:
        return f"{self.path}::{self.function}" + ("" if self.parameter is None else f"[{self.parameter}]")


def read(path: Path = RULES) -> Mapping[str, list[dict[str, Any]]]:
    """The tables `rule` and `open`."""
    tables: Mapping[str, list[dict[str, Any]]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return tables


@cache
def functions(path: Path) -> Mapping[str, frozenset[str]]:
    """The tests that a file defines, each with its marks, and with `skip` where it or what it uses of the file may skip
    it; empty where there is no such file.
    """
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    everywhere = _module_marks(tree) | frozenset(
        mark for node in tree.body if not isinstance(node, FUNCTIONS) for mark in _given_up(node)
    )
    defined = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
    given_up = {name: _given_up(node) for name, node in defined.items()}
    return {
        name: everywhere.union(
            (mark for each in node.decorator_list if (mark := _mark(each))),
            *(given_up[used] for used in {name, *_used(node)} & defined.keys()),
        )
        for name, node in defined.items()
        if name.startswith("test_")
    }


def missing(names: Iterable[TestName], root: Path = ROOT, *, known: Container[str] = ()) -> list[str]:
    """Why which of the tests do not exist, or do not run.

    Args:
        known: tests that pytest has found already, parameters included.
    """
    wanted = set(names)
    wrong = []
    for name in wanted:
        marks = functions(root / name.path).get(name.function)
        if marks is None:
            wrong.append(f"{name}: no such test")
        elif marks & NEVER_RUN:
            wrong.append(f"{name}: marked {', '.join(sorted(marks & NEVER_RUN))}")
    single = {name for name in wanted if name.parameter is not None and str(name) not in known}
    present = collected({name.path for name in single if (root / name.path).is_file()}, root)
    wrong += [f"{name}: no such parameter" for name in single if str(name) not in present]
    return sorted(wrong)


def collected(paths: Iterable[str], root: Path = ROOT) -> frozenset[str]:
    """What pytest itself finds in some files, parameters included."""
    files = sorted(paths)
    if not files:
        return frozenset()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=root,
        env={name: value for name, value in os.environ.items() if not name.startswith(UNSET)},
        capture_output=True,
        text=True,
        timeout=COLLECT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return frozenset(line for line in run.stdout.splitlines() if "::" in line)


def headings(path: Path = ANSWERS) -> frozenset[str]:
    """The sections of our answers."""
    return frozenset(
        line[3:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    )


def _mark(node: ast.expr) -> str:
    call = node.func if isinstance(node, ast.Call) else node
    found = isinstance(call, ast.Attribute) and isinstance(call.value, ast.Attribute) and call.value.attr == "mark"
    return call.attr if found and isinstance(call, ast.Attribute) else ""


def _given_up(node: ast.AST) -> frozenset[str]:
    """`skip` where `pytest.skip(…)` or the like stands in it, `xfail` where `pytest.xfail(…)` does."""
    called = {
        call.func.attr
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "pytest"
    }
    return frozenset("xfail" if name == "xfail" else "skip" for name in called & GIVES_UP)


def _used(node: ast.AST) -> set[str]:
    """The names in a function, its arguments' (fixtures) among them."""
    inside = list(ast.walk(node))
    return {each.id for each in inside if isinstance(each, ast.Name)} | {
        each.arg for each in inside if isinstance(each, ast.arg)
    }


def _module_marks(tree: ast.Module) -> frozenset[str]:
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
    ]
    marks = [each for value in values for each in (value.elts if isinstance(value, ast.List) else [value])]
    return frozenset(mark for each in marks if (mark := _mark(each)))
