"""The distributions of this repository as a release has them, and clean environments that they are installed into."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
UV: Final = Path(sys.executable).parent / "uv"
_SECONDS: Final = 300.0


class Wheelhouse:
    """What `uv build` makes of every member of the workspace: a source distribution, and a wheel made of that.

    Args:
        directory: where they are put.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        run(UV, "build", "--quiet", "--all-packages", "--out-dir", directory, cwd=ROOT)

    @cached_property
    def wheels(self) -> dict[str, Path]:
        """By the name of the distribution."""
        return {path.name.split("-")[0].replace("_", "-"): path for path in sorted(self.directory.glob("*.whl"))}

    def environment(self, directory: Path, *distributions: str) -> Path:
        """A new environment with these distributions and what they need of others; gives its directory of commands.

        Of ours nothing comes but the wheels that are named: one that needs another of ours fails. The others come in
        the versions of requirements.lock.
        """
        run(UV, "venv", "--quiet", "--python", sys.executable, directory)
        python = directory / "bin" / "python"
        chosen = [self.wheels[name] for name in distributions]
        # pip's index is not uv's: what an operator has set for one counts here for the other, as in the Makefile.
        index = {"UV_DEFAULT_INDEX": url} if (url := os.environ.get("PIP_INDEX_URL")) else {}
        lock = ("--constraint", ROOT / "requirements.lock")
        run(UV, "pip", "install", "--quiet", "--python", python, *lock, *chosen, environment=index)
        run(UV, "pip", "check", "--quiet", "--python", python)
        return directory / "bin"

    def installed(self, commands: Path) -> set[str]:
        """The names of all that is in an environment."""
        listed = run(UV, "pip", "freeze", "--python", commands / "python")
        return {re.split(r"==| @ ", line)[0] for line in listed.splitlines()}


def run(*command: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a command without a trace of this environment; gives its standard output.

    Args:
        environment: variables beside those that are left.

    Raises:
        AssertionError: it failed, or did not end in time; says what it printed.
    """
    left_out = ("VIRTUAL_ENV", "PYTHONPATH", "PYTEST_VERSION", "PYTEST_CURRENT_TEST")
    env = {name: value for name, value in os.environ.items() if name not in left_out and not name.startswith("SMCP_")}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            check=False,
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**env, **(environment or {})},
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{command} did not end within {_SECONDS:g} s") from None
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
