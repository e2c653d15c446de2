"""The environment of the published package: `build/published`, made once by uv."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENV = ROOT / "build" / "published"
WANTED = ["a2c-smcp[cli]==0.4.2", "mcp<2", "aiohttp", "uvloop"]


def python() -> Path:
    """The interpreter of that environment; made on the first call, and when other packages are wanted."""
    interpreter, made = ENV / "bin" / "python", ENV / "made"
    if not made.exists() or made.read_text().split() != WANTED:
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--clear", ENV], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", interpreter, *WANTED], check=True)
        made.write_text("\n".join(WANTED))
    return interpreter
