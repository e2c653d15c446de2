"""Prints the part of requirements.lock that some distributions need, with its hashes.

    python docker/locked.py --python 3.11.2 --machine x86_64 smcp-gateway smcp-registry

The lock is for all machines and for everything, the tools of developers included; this is for one kind of machine, and
holds no markers. What needs what is read from the packages that are installed where this runs (`make setup`).
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK: Final = Path(__file__).resolve().parent.parent / "requirements.lock"
_ENTRY: Final = re.compile(r"^[A-Za-z0-9].*(?:\n[ \t]+--hash=.*)+", re.MULTILINE)
"""A requirement and its hashes."""


class LockError(Exception):
    """Something that is needed is not in the lock, or not installed here; the text says what."""


def linux(python: str, machine: str) -> dict[str, str]:
    """The environment in which markers are read: CPython `python` (`3.11.2`) on Linux, `machine` as of `uname -m`."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
    }


def entries(lock: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The requirements of a lock that hold in `environment`, without markers, by their normalized name."""
    found: dict[str, str] = {}
    for entry in _ENTRY.findall(lock):
        head, *hashes = [line.removesuffix("\\").strip() for line in entry.splitlines()]
        requirement = Requirement(head)
        if _holds(requirement.marker, environment):
            pinned = f"{requirement.name}{requirement.specifier}"
            found[canonicalize_name(requirement.name)] = " \\\n    ".join([pinned, *hashes])
    return found


def needed(distributions: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """The normalized names of `distributions` and of all that they need in `environment`.

    Raises:
        LockError: one is not installed here.
    """
    waiting = [Requirement(name) for name in distributions]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *sorted(wanted.extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            here = {**environment, "extra": extra}
            waiting += [each for each in _requirements(name) if _holds(each.marker, here)]
    return {name for name, _ in seen}


def locked(lock: str, distributions: Sequence[str], environment: Mapping[str, str], also: Sequence[str] = ()) -> str:
    """The part of `lock` that `distributions` need, with hashes; they themselves are not in it.

    Args:
        also: packages of the lock that nobody needs, with what they need.

    Raises:
        LockError: see `needed`; or the lock lacks something.
    """
    pinned = entries(lock, environment)
    own = {canonicalize_name(name) for name in distributions}
    wanted = {name for name in needed([*distributions, *also], environment) if not name.startswith("smcp-")} - own
    if missing := sorted(wanted - set(pinned)):
        raise LockError(f"requirements.lock lacks {', '.join(missing)}: make lock")
    return "".join(f"{pinned[name]}\n" for name in sorted(wanted))


def _requirements(name: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        raise LockError(f"{name} is not installed here: make setup") from None


def _holds(marker: Marker | None, environment: Mapping[str, str]) -> bool:
    return marker is None or marker.evaluate({"extra": "", **environment})


def main() -> int:
    """Print it; gives the exit code of the process."""
    parser = argparse.ArgumentParser(description="Print the part of requirements.lock that distributions need.")
    parser.add_argument("--python", required=True, help="the full version of Python, such as 3.11.2")
    parser.add_argument("--machine", required=True, help="as `uname -m` says, such as x86_64")
    parser.add_argument("--also", action="append", default=[], help="a package of the lock that nobody needs")
    parser.add_argument("distributions", nargs="+")
    told = parser.parse_args()
    try:
        text = locked(LOCK.read_text(encoding="utf-8"), told.distributions, linux(told.python, told.machine), told.also)
    except LockError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
