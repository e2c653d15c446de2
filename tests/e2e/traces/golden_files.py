"""Trees that are kept in files: compared, or written anew where `UPDATE_GOLDEN` is set."""

import difflib
import json
import os
from pathlib import Path
from typing import Any

_DIRECTORY = Path(__file__).with_name("golden")


def updating() -> bool:
    """Whether this run writes the files in place of comparing."""
    return bool(os.environ.get("UPDATE_GOLDEN"))


def matches(name: str, found: Any) -> bool:
    """Whether `found` is what the file says.

    Raises:
        AssertionError: it is not; shows the difference.
    """
    path = _DIRECTORY / f"{name}.json"
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if updating():
        path.write_text(text, encoding="utf-8")
        return True
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    difference = difflib.unified_diff(kept.splitlines(), text.splitlines(), str(path), "found", lineterm="", n=2)
    assert kept == text, "\n".join(difference)
    return True
