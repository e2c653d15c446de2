"""Two offices, each with a Computer whose tool notes its runs: one is hurt, and the other is to notice nothing."""

from pathlib import Path
from typing import Final

from tests.e2e.worlds.engine import ROOT
from tests.e2e.worlds.layout import Place

NORTH: Final = "north"
"""Its Agent is on gateway 0."""
SOUTH: Final = "south"
"""Its Agent is on gateway 1."""
WORKER: Final = "worker"
"""The Computer of each."""
SHOWN: Final = [ROOT / "tests" / "e2e" / "restarts"]
"""Where the MCP server is."""


def places(directory: Path) -> list[Place]:
    """For a world in that directory."""
    return [_place(directory, office) for office in (NORTH, SOUTH)]


def runs(directory: Path, office: str) -> Path:
    """The file of runs of the office's Computer."""
    return directory / _credential(office) / "runs"


def _place(directory: Path, office: str) -> Place:
    parameters = {
        "command": "/opt/testing/bin/python",
        "args": ["-m", "tests.e2e.restarts.tool_server", str(runs(directory, office))],
        "env": {"PYTHONPATH": str(ROOT)},
    }
    return Place(_credential(office), office, WORKER, {"work": {"type": "stdio", "server_parameters": parameters}})


def _credential(office: str) -> str:
    return f"host-{office}"
