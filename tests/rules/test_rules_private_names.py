"""Names of other people's packages that begin with an underscore are used in one adapter module per package, and few.

Each is listed here with its module; the module gives the reason, `pyproject.toml` the upper bound of the package's
version, and a test fails by name when it moves.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from mcp.server.session import ServerSession
from nats.aio.client import Client

from bench.published_env import ROOT

ALLOWED: Final[dict[str, set[str]]] = {
    "smcp_bus.nats.socket": {"_reconnection_task", "_transport"},  # nats-py's client
    "smcp_gateway.sockets.engine": {
        "engineio._async",
        *(f"asyncio.{name}" for name in ("_put", "_get", "_queue")),  # of Queue, for its subclasses
    },
    "smcp_mcp.offices": {"_connection"},  # of the MCP SDK's session
}
MOST: Final = 15
PRIVATE: Final = re.compile(r"_[a-z]\w*")
DOCUMENTED: Final = {"_asdict", "_replace", "_fields", "_exit"}
"""Of the standard library."""

SOURCES: Final = sorted(path for part in ("libs", "services") for path in ROOT.glob(f"{part}/*/src/**/*.py"))
OURS: Final = {path.relative_to(ROOT).parts[3] for path in SOURCES}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Walked once, by the first test that wants them: the walk is most of the time."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").relative_to(ROOT).parts[3:]).removesuffix(".__init__")


def attributes(nodes: Iterable[ast.AST]) -> Iterator[ast.Attribute]:
    return (node for node in nodes if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr))


def named_in_calls(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The private names in `getattr(x, "_name")` and its like."""
    for node in nodes:
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if PRIVATE.fullmatch(name):
                yield name


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The private modules of others, and the private names, that are imported."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if re.search(r"\._[a-z]", alias.name))
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] not in OURS:
                if re.search(r"\._[a-z]", module):
                    yield module
                yield from (f"{module}.{alias.name}" for alias in names if PRIVATE.fullmatch(alias.name))


def of_self(tree: ast.AST) -> set[str]:
    """Private names of the class itself that its source uses or defines."""
    nodes = list(ast.walk(tree))
    used = {node.attr for node in attributes(nodes) if isinstance(node.value, ast.Name) and node.value.id == "self"}
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return used | {name for name in defined if PRIVATE.fullmatch(name)}


def own_names() -> set[str]:
    """Private names that some file of ours defines: read anywhere, they are ours."""
    names = set(DOCUMENTED)
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def foreign(kind: type) -> bool:
    root = kind.__module__.partition(".")[0]
    return root not in OURS and root != "pydantic"


@cache
def private_names_of(base: type) -> set[str]:
    """Those of a class of others; empty where its source cannot be had: it was made at run time, or in C."""
    try:
        return of_self(ast.parse(textwrap.dedent(inspect.getsource(base))))
    except (OSError, TypeError):
        return set()


def inherited(module: Any, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Private names that a class of ours shares with the classes of others that it derives from."""
    for node in nodes:
        kind = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        if not isinstance(kind, type):
            continue
        own = of_self(node)
        for base in filter(foreign, kind.__mro__[1:]):
            shared = private_names_of(base) & own
            yield from (f"{base.__module__.partition('.')[0]}.{name}" for name in shared)


def reaches() -> dict[str, set[str]]:
    ours = own_names()
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        nodes = nodes_of(path)
        name = module_of(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        names = {
            node.attr
            for node in attributes(nodes)
            if node.attr not in ours or "noqa: SLF001" in lines[node.lineno - 1]  # ruff asks for the mark
        }
        names |= set(named_in_calls(nodes))
        names |= set(imported(nodes))
        if any(isinstance(node, ast.ClassDef) and node.bases for node in nodes):
            names |= set(inherited(importlib.import_module(name), nodes))
        if names:
            found[name] = names
    return found


def test_the_lint_sees_names_that_are_given_as_text() -> None:
    tree = ast.parse('getattr(x, "_a", None); setattr(x, "_b", 1); hasattr(x, "_c"); getattr(x, "d"); getattr(x, name)')
    assert set(named_in_calls(ast.walk(tree))) == {"_a", "_b", "_c"}


def test_the_lint_sees_names_that_are_imported() -> None:
    text = "import a._b, a.b; from a._c import d; from a.b import _e, f; from . import _g; from smcp_bus.bus import _h"
    assert set(imported(ast.walk(ast.parse(text)))) == {"a._b", "a._c", "a.b._e"}


@pytest.mark.parametrize(
    ("kind", "name"), [(Client, "_transport"), (Client, "_reconnection_task"), (ServerSession, "_connection")], ids=str
)
def test_a_private_name_is_still_there(kind: type, name: str) -> None:
    """Those of engine.io and asyncio: `test_smcp_gateway_library_names.py`."""
    assert name in private_names_of(kind)


def test_only_adapter_modules_use_private_names_of_libraries() -> None:
    assert reaches() == ALLOWED
    assert sum(map(len, ALLOWED.values())) <= MOST
    assert not any(module.startswith("smcp_agent") for module in ALLOWED)
