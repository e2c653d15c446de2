"""Under which names the tools of several MCP servers are listed. Pure.

The rules, in this order:

1. A tool that its server's `forbidden_tools` names, by its original name or its alias, is not listed.
2. A tool wants its alias, or else its own name, made legal for every LLM API: `[A-Za-z0-9_-]{1,64}`.
3. A name that more than one tool wants is given to none of them: each is listed as `<server>__<name>`.
4. What still collides, or is too long, ends in a digest of the server's name and the tool's own.

So all names are legal and unique, and depend on what is configured and offered, not on any order.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_LENGTH: Final = 64
SEPARATOR: Final = "__"
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_LENGTH: Final = 8


@dataclass(frozen=True, slots=True, order=True)
class ToolRef:
    """A tool as its server knows it."""

    server: str
    tool: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server offers, and what is configured about it."""

    server: str
    tools: Sequence[str]
    """Original names; one that stands twice counts once."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """By original name."""
    forbidden: frozenset[str] = frozenset()
    """Original names and aliases."""


@dataclass(frozen=True, slots=True)
class Names:
    """What all tools are called."""

    listed: Mapping[str, ToolRef]
    """By the name under which a tool is listed, sorted."""
    forbidden: Mapping[str, ToolRef]
    """What is not listed, by each name that a caller may try: original, alias, qualified."""
    renamed: Mapping[ToolRef, str]
    """Tools whose listed name is neither their own nor their alias; for the log."""


def name_tools(offers: Iterable[Offer]) -> Names:
    """Apply the rules to what all servers offer."""
    wanted: dict[ToolRef, str] = {}
    forbidden: dict[str, ToolRef] = {}
    for offer in sorted(offers, key=lambda offer: offer.server):
        for tool in sorted(offer.tools):
            ref = ToolRef(offer.server, tool)
            alias = offer.aliases.get(tool)
            if tool in offer.forbidden or (alias is not None and alias in offer.forbidden):
                for name in (tool, alias or tool):
                    for form in (name, legal(name), qualified(ref, name)):
                        forbidden.setdefault(form, ref)
            else:
                wanted[ref] = alias or tool
    listed = _assign(wanted)
    by_name = dict(sorted((name, ref) for ref, name in listed.items()))
    return Names(
        listed=by_name,
        forbidden={name: ref for name, ref in sorted(forbidden.items()) if name not in by_name},
        renamed={ref: name for ref, name in sorted(listed.items()) if name != wanted[ref]},
    )


def legal(name: str) -> str:
    """`name` with what is not legal replaced by `_`; a longer one is cut and ends in a digest of the whole."""
    changed = _ILLEGAL.sub("_", name) or "_"
    return changed if len(changed) <= MAX_LENGTH else _with_digest(changed, name)


def qualified(ref: ToolRef, wanted: str) -> str:
    """The name with its server before it, made legal."""
    return legal(f"{ref.server}{SEPARATOR}{wanted}")


def _assign(wanted: Mapping[ToolRef, str]) -> dict[ToolRef, str]:
    """Each tool the simplest name that no other tool could take as well, level by level."""
    names: dict[ToolRef, str] = {}
    open_refs = sorted(wanted)
    taken: set[str] = set()
    for level in (_own_name, _qualified_name):
        proposals = {ref: level(ref, wanted[ref]) for ref in open_refs}
        count = Counter(proposals.values())
        settled = {ref: name for ref, name in proposals.items() if count[name] == 1 and name not in taken}
        names |= settled
        # a name that several wanted goes to nobody, also not at a later level: it would look like one of theirs
        taken |= set(proposals.values())
        open_refs = [ref for ref in open_refs if ref not in settled]
    for ref in open_refs:
        names[ref] = _unique(ref, wanted[ref], taken)
        taken.add(names[ref])
    return names


def _own_name(ref: ToolRef, wanted: str) -> str:
    return legal(wanted)


def _qualified_name(ref: ToolRef, wanted: str) -> str:
    return qualified(ref, wanted)


def _unique(ref: ToolRef, wanted: str, taken: set[str]) -> str:
    base = _ILLEGAL.sub("_", f"{ref.server}{SEPARATOR}{wanted}")
    attempt = 0
    while True:
        name = _with_digest(base, f"{ref.server}\0{ref.tool}\0{attempt}")
        if name not in taken:
            return name
        attempt += 1


def _with_digest(base: str, whole: str) -> str:
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{base[: MAX_LENGTH - _DIGEST_LENGTH - 1]}_{digest}"
