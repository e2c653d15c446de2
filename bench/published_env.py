"""Environments below `build`, such as that of the published package; made once by uv."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = Path(__file__).with_name("published.lock")
"""What is installed for the published package, with hashes; made from `published.in` by `make lock`."""
INSTALL_S: Final = 300.0
"""How long the making may take (seconds)."""


class NotInstalled(Exception):
    """The packages could not be installed; the text ends with what uv said."""


def python(name: str = "published", lock: Path = LOCK) -> Path:
    """The interpreter of an environment; made on the first call, and when other packages are wanted.

    Raises:
        NotInstalled: it cannot be made, or not within 300 s.
    """
    env = ROOT / "build" / name
    interpreter, made = env / "bin" / "python", env / "made"
    wanted = lock.read_text(encoding="utf-8")
    env.parent.mkdir(exist_ok=True)
    with _alone(env.parent / f"{name}.busy"):
        if not made.exists() or made.read_text(encoding="utf-8") != wanted:
            _uv("venv", "--quiet", "--clear", "--python", sys.executable, env)
            _uv("pip", "install", "--quiet", "--python", interpreter, "--no-deps", "--require-hashes", "-r", lock)
            made.write_text(wanted, encoding="utf-8")
    return interpreter


def _uv(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    index = os.environ.get("PIP_INDEX_URL")  # uv does not read it, and a mirror counts for it, too, as in the Makefile
    env = ({"UV_DEFAULT_INDEX": index} if index else {}) | os.environ
    try:
        subprocess.run(
            command, check=True, timeout=INSTALL_S, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"the packages were not installed within {INSTALL_S:g} s\n{_said(error)}") from None
    except subprocess.CalledProcessError as error:
        raise NotInstalled(f"the packages could not be installed\n{_said(error)}") from None


def _said(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    said = error.output or ""
    if isinstance(said, bytes):  # what a time-out carries, whatever `text` says
        said = said.decode("utf-8", "replace")
    return "\n".join(said.strip().splitlines()[-15:])


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; the others wait until it is made."""
    with path.open("a") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        yield


def main(name: str = "published", lock: str = str(LOCK)) -> int:
    try:
        python(name, Path(lock))
    except NotInstalled as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
