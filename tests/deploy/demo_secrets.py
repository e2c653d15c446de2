"""The script of the demo that makes Secrets, as a module."""

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "deploy" / "k8s" / "components" / "demo" / "make_secrets.py"


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_secrets", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


MADE = str(module().MADE)
"""The Secret of which the others are made."""


def keys() -> dict[str, frozenset[str]]:
    """The Secrets that it makes, and their keys."""
    return {name: frozenset(files) for name, files in module().FILES.items()}
