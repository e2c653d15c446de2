"""Parts whose clock is wrong: libfaketime stands before the C library, and answers what time it is."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from tests.e2e.worlds.engine import ROOT, docker

_FILE: Final = Path(__file__).parent / "clock.Dockerfile"


def ahead(seconds: int) -> dict[str, str]:
    """The variables of a part whose clock is ahead by so much. All waits are as long as ever."""
    return {
        "LD_PRELOAD": "/usr/lib/faketime/libfaketime.so.1",
        "FAKETIME": f"{seconds:+d}s",
        "DONT_FAKE_MONOTONIC": "1",
    }


@cache
def with_faketime(image: str) -> str:
    """The same image with libfaketime in it.

    Raises:
        AssertionError: it cannot be built; says why.
    """
    built = f"{image}-clock"
    arguments = ("--build-arg", f"FAKETIME={_faketime()}", "--build-arg", f"IMAGE={image}")
    docker("build", "--quiet", "--network", "none", "--file", str(_FILE), *arguments, "--tag", built, str(_FILE.parent))
    return built


@cache
def _faketime() -> str:
    done = subprocess.run(
        [ROOT / "docker" / "base.sh", "faketime"], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
