"""Where something stands in a configuration file, as its user reads it. Pure."""

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
PARAMETERS: Final = "server_parameters"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server stands.

    Attributes:
        above: the key that holds all servers; empty where they stand at the top level.
        flat: its parameters stand beside its other fields, as other MCP hosts write them.
    """

    above: str
    name: str
    flat: bool = False

    def field(self, path: str = "") -> str:
        """The place of a field, given by its path (with dots) in the structure of the protocol."""
        if self.flat:
            path = path.removeprefix(PARAMETERS).lstrip(".")
        own = self.name if _PLAIN.fullmatch(self.name) else json.dumps(self.name, ensure_ascii=False)
        return ".".join(part for part in (self.above, own, path) if part)


def near(key: str, known: Iterable[str]) -> str | None:
    """The one of `known` that somebody who wrote `key` most likely meant; camelCase counts as snake_case."""
    folded = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    by_folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.65)
    return by_folded[found[0]] if found else None


def meant(key: str, known: Iterable[str]) -> str:
    """`near` as the end of a sentence; empty where nothing is near, or just what was written."""
    name = near(key, known)
    return "" if name in (None, key) else f"; did you mean {name!r}?"
