"""The two test commands of the Makefile."""

from typing import Final

import pytest

from tests.packaging.wheelhouse import ROOT, run

DIRECTORIES: Final = sorted(
    {
        path.parent.relative_to(ROOT).as_posix()
        for top in ("libs", "services", "tests")
        for path in (ROOT / top).rglob("test_*.py")
        if "node_modules" not in path.parts
    }
)


def directories(variable: str) -> list[str]:
    print_it = f"print-it:;@echo $({variable})"
    return run("make", "--no-print-directory", "-C", str(ROOT), "--eval", print_it, "print-it").split()


@pytest.mark.parametrize("path", DIRECTORIES)
def test_every_test_directory_is_run_by_make_test_or_make_e2e(path: str) -> None:
    runs = [top for top in directories("TESTS") + directories("E2E_TESTS") if f"{path}/".startswith(f"{top}/")]
    assert len(runs) == 1
