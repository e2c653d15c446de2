"""The environment of the published package: `build/published`, made once by uv."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENV = ROOT / "build" / "published"
WANTED = ["a2c-smcp==0.4.2", "mcp<2", "aiohttp", "uvloop"]


def python() -> Path:
    """The interpreter of that environment; made on the first call."""
    interpreter = ENV / "bin" / "python"
    if not (ENV / "made").exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--clear", ENV], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", interpreter, *WANTED], check=True)
        (ENV / "made").touch()
    return interpreter
