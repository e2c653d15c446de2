"""The names under which tools are listed, by these rules, in this order:

1. A tool that its server's `forbidden_tools` names, by its original name or its alias, is not listed.
2. A tool that is listed keeps its name, as long as its server offers it and its alias is the same.
3. A tool wants its alias, or else its own name, made legal for every LLM API: `[A-Za-z0-9_-]{1,64}`.
4. A name that another tool has, or that more than one new tool wants, is given to none of the new ones: each is listed
   as `<server>__<name>`.
5. What still collides, or is too long, ends in a digest of the server's name and the tool's own.

So all names are legal and unique. Until somebody has seen them, they depend on what is configured and offered alone,
not on which server was first. `<server>__<name>` can be called always, whatever a tool is listed as.

An orderly restart is not an exception to rule 2: a Computer that stops writes the names that were seen to a file
(`write_names`). Until a server is ready for the first time in the next process, the tools that it had keep their names.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Final

from pydantic import StringConstraints, TypeAdapter, ValidationError

from smcp_proto.validation import malformed
from smcp_service.files import UnusableFile, read_protected, replace_files

_log = logging.getLogger("smcp_computer.tool_names")

MAX_LENGTH: Final = 64
SEPARATOR: Final = "__"
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_LENGTH: Final = 8


@dataclass(frozen=True, slots=True, order=True)
class ToolRef:
    server: str
    tool: str


@dataclass(frozen=True, slots=True)
class Offer:
    server: str
    tools: Sequence[str]
    """Original names; one that stands twice counts once."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """By original name."""
    forbidden: frozenset[str] = frozenset()
    """Original names and aliases."""


@dataclass(frozen=True, slots=True)
class Names:
    listed: Mapping[str, ToolRef] = field(default_factory=dict)
    """By the name under which a tool is listed, sorted."""
    wanted: Mapping[ToolRef, str] = field(default_factory=dict)
    """The alias, or the original name, of each that is listed."""
    qualified: Mapping[str, ToolRef] = field(default_factory=dict)
    """Tools by `<server>__<alias>` and `<server>__<original name>`, if that names one tool and is not a listed name."""
    forbidden: Mapping[str, Collection[ToolRef]] = field(default_factory=dict)
    """What is not listed, by each name that a caller may try: original, alias, qualified."""


NO_NAMES: Final = Names()


def name_tools(offers: Iterable[Offer], before: Names = NO_NAMES) -> Names:
    """Apply the rules to what all servers offer; `before`: names to keep. Pure."""
    wanted: dict[ToolRef, str] = {}
    forbidden: dict[str, set[ToolRef]] = {}
    for offer in sorted(offers, key=lambda offer: offer.server):
        for tool in sorted(offer.tools):
            ref = ToolRef(offer.server, tool)
            alias = offer.aliases.get(tool)
            if tool in offer.forbidden or (alias is not None and alias in offer.forbidden):
                for name in (tool, alias or tool):
                    for form in (name, legal(name), qualified(ref, name)):
                        forbidden.setdefault(form, set()).add(ref)
            else:
                wanted[ref] = alias or tool
    kept = {ref: name for name, ref in before.listed.items() if wanted.get(ref) == before.wanted[ref]}
    listed = _assign(wanted, kept)
    by_name = dict(sorted((name, ref) for ref, name in listed.items()))
    forms = {(qualified(ref, name), ref) for ref, alias in wanted.items() for name in (alias, ref.tool)}
    times = Counter(form for form, _ in forms)
    return Names(
        listed=by_name,
        wanted=wanted,
        qualified={form: ref for form, ref in forms if times[form] == 1 and form not in by_name},
        forbidden={name: refs for name, refs in sorted(forbidden.items()) if name not in by_name},
    )


_FILE: Final = TypeAdapter(
    dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")], tuple[str, str, str]]
)
"""By listed name: the server, the tool's own name, and the one that it wanted."""


def take_names(path: Path) -> Names:
    """The names that `write_names` wrote, to keep them; the file is removed, since a crash leaves it as it is. Without
    one there are none; one that cannot be used is a warning."""
    if not path.exists():
        return NO_NAMES
    try:
        if not path.is_file():
            raise ValueError("it is not a file")  # noqa: TRY301 -- as reading raises; a pipe would be waited for
        text = read_protected(path)
        path.unlink()
        kept = _FILE.validate_python(json.loads(text))
    except (OSError, UnusableFile, ValueError, RecursionError) as error:
        why = malformed(error).message if isinstance(error, ValidationError) else error
        _log.warning("tools may get other names than before: %s cannot be read: %s", path, why)
        return NO_NAMES
    listed = {name: ToolRef(server, tool) for name, (server, tool, _) in kept.items()}
    return Names(listed, {listed[name]: wanted for name, (_, _, wanted) in kept.items()})


def write_names(path: Path, names: Names) -> None:
    """Keep the listed names for the next process. A file that cannot be written is a warning."""
    kept = {name: (ref.server, ref.tool, names.wanted[ref]) for name, ref in names.listed.items()}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_files({path: json.dumps(kept, indent=1).encode()})
    except OSError as error:
        _log.warning("tools may get other names at the next start: %s cannot be written: %s", path, error.strerror)


def legal(name: str) -> str:
    """`name` with what is not legal replaced by `_`; a longer one is cut and ends in a digest of the whole."""
    changed = _ILLEGAL.sub("_", name) or "_"
    return changed if len(changed) <= MAX_LENGTH else _with_digest(changed, name)


def qualified(ref: ToolRef, wanted: str) -> str:
    return legal(f"{ref.server}{SEPARATOR}{wanted}")


def _assign(wanted: Mapping[ToolRef, str], kept: Mapping[ToolRef, str]) -> dict[ToolRef, str]:
    """The kept names, and each new tool the simplest name that no other tool could take as well, level by level."""
    names = dict(kept)
    open_refs = sorted(wanted.keys() - kept.keys())
    taken = set(kept.values())
    for level in (lambda _, name: legal(name), qualified):
        proposals = {ref: level(ref, wanted[ref]) for ref in open_refs}
        times = Counter(proposals.values())
        settled = {ref: name for ref, name in proposals.items() if times[name] == 1 and name not in taken}
        names |= settled
        # a name that several wanted goes to nobody, also not at a later level: it would look like one of theirs
        taken |= set(proposals.values())
        open_refs = [ref for ref in open_refs if ref not in settled]
    for ref in open_refs:
        base = _ILLEGAL.sub("_", f"{ref.server}{SEPARATOR}{wanted[ref]}")
        attempts = (_with_digest(base, f"{ref.server}\0{ref.tool}\0{attempt}") for attempt in count(0))
        names[ref] = next(name for name in attempts if name not in taken)
        taken.add(names[ref])
    return names


def _with_digest(base: str, whole: str) -> str:
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{base[: MAX_LENGTH - _DIGEST_LENGTH - 1]}_{digest}"
