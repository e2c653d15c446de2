"""Change `smcp_proto` and `smcp_registry.admission` in a thousand small ways, and see that a test fails each time.

    python -m tests.mutants

mutmut does it (`[tool.mutmut]` in pyproject.toml), in a tree of its own under `build/mutants`. It changes the bodies of
functions; what the modules declare (fields, bounds, rows) is held literally by the tests of the rules and by the
published schemas. Printed are a line for each module and the mutants that live; `mutmut show NAME` there shows one.

Exit codes: 0 done; 1 the tests fail without a change, or too many mutants live; 2 wrong usage.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
STAGE: Final = ROOT / "build" / "mutants"
LOG: Final = STAGE / "mutmut.log"

PACKAGES: Final = ("libs/smcp-proto/src/smcp_proto", "services/registry/src/smcp_registry")
TESTS: Final = ("libs/smcp-proto/tests", "services/registry/tests/test_smcp_registry_admission.py")

LEAST: Final = 0.9
"""The part of the mutants that has to die, in each of these packages."""
PARTS: Final = ("smcp_proto", "smcp_registry.admission")
WORKERS: Final = 2
LIMIT_S: Final = 2 * 3600

DEAD: Final = frozenset({"killed", "timeout", "segfault"})
ALIVE: Final = frozenset({"survived", "no tests", "suspicious"})


def stage() -> None:
    """Put the packages and their tests where mutmut looks for them: `src` and `tests`."""
    shutil.rmtree(STAGE, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, STAGE / "src" / Path(package).name, ignore=shutil.ignore_patterns("__pycache__")
        )
    (STAGE / "tests").mkdir()
    for place in TESTS:
        for file in sorted((ROOT / place).glob("test_*.py")) if (ROOT / place).is_dir() else [ROOT / place]:
            shutil.copy(file, STAGE / "tests")
    shutil.copy(ROOT / "pyproject.toml", STAGE)


def mutmut(*arguments: str) -> str:
    """Run mutmut there, and give what it printed.

    Raises:
        subprocess.SubprocessError: it failed, or took too long.
    """
    environment = os.environ | {"HYPOTHESIS_PROFILE": "mutants", "PYTHONDONTWRITEBYTECODE": "1"}
    with LOG.open("a+") as log:
        begin = log.tell()
        subprocess.run(
            [sys.executable, "-m", "mutmut", *arguments],
            cwd=STAGE, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            check=True, timeout=LIMIT_S,
        )  # fmt: skip
        log.seek(begin)
        return log.read()


def read(results: str) -> dict[str, str]:
    """Each mutant's name, and what became of it, from the lines `NAME: STATUS`."""
    lines = (line.strip().rpartition(": ") for line in results.splitlines() if "__mutmut_" in line)
    return {name: status for name, _, status in lines}


def module_of(mutant: str) -> str:
    """`smcp_proto.member_names` of `smcp_proto.member_names.x_check_name__mutmut_1`."""
    return mutant.rpartition(".")[0]


def table(mutants: Mapping[str, str]) -> list[str]:
    """A line for each module, and one for all."""
    modules: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, status in mutants.items():
        modules[module_of(name)][status] += 1
    modules["all"] = sum((counts for name, counts in sorted(modules.items())), Counter[str]())
    lines = [f"{'':32} {'mutants':>8} {'killed':>8} {'timeout':>8} {'lived':>8}"]
    for name, counts in modules.items():
        lived = sum(counts[status] for status in counts if status not in DEAD)
        part = 1 - lived / counts.total()
        lines.append(
            f"{name:32} {counts.total():8} {counts['killed']:8} {counts['timeout']:8} {lived:8} {100 * part:6.1f} %"
        )
    return lines


def lacking(mutants: Mapping[str, str]) -> list[str]:
    """Of which parts too few died, or there are none at all, a line each."""
    found = []
    for part in PARTS:
        statuses = [status for name, status in mutants.items() if f"{name}.".startswith(f"{part}.")]
        died = sum(status in DEAD for status in statuses)
        if died < LEAST * len(statuses) or not statuses:
            found.append(f"{part}: {died} of {len(statuses)} mutants died, less than {100 * LEAST:g} %")
    return found


def main() -> int:
    if sys.argv[1:]:
        print("usage: python -m tests.mutants", file=sys.stderr)
        return 2
    stage()
    try:
        mutmut("run", "--max-children", str(WORKERS))
        mutants = read(mutmut("results", "--all", "true"))
    except subprocess.SubprocessError as error:
        said = LOG.read_text().replace("\r", "\n")
        print(f"{said[-4000:]}\n{error}", file=sys.stderr)
        return 1
    print(*table(mutants), sep="\n")
    unfinished = sorted(name for name, status in mutants.items() if status not in DEAD | ALIVE)
    lived = sorted(name for name, status in mutants.items() if status in ALIVE)
    print("\nthese live:", *lived, sep="\n  ")
    if unfinished or not mutants:
        print(f"{len(unfinished)} of {len(mutants)} mutants were not tried", file=sys.stderr)
        return 1
    if wrong := lacking(mutants):
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
