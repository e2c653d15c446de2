"""The kinds of worlds, by name.

A world of containers runs the commands of a world of processes, in this tree's images. If CI demands containers, the
same scenario does not run among processes, too (the mark `also_in_containers`).
"""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import pytest
from _pytest.mark import ParameterSet

from smcp_testing.profiles import scaled
from tests.e2e.worlds.containers import open_containers
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.standalone import open_standalone
from tests.e2e.worlds.world import World

PROCESSES: Final = "processes"
CONTAINERS: Final = "containers"
STANDALONE: Final = "standalone"

OPEN: Final[dict[str, Callable[..., AbstractAsyncContextManager[World]]]] = {
    STANDALONE: open_standalone,
    PROCESSES: open_processes,
    CONTAINERS: open_containers,
}


TEST_S: Final = scaled(ci=300, soak=3600)
"""Of a test that does not say for itself how long it may take. On a busy machine a world needs minutes to start; after
three it is said which part is late."""


def kinds(*names: str) -> list[ParameterSet]:
    """The parameters of a test that runs in these kinds of worlds; the one among processes is marked."""
    return [pytest.param(name, marks=pytest.mark.also_in_containers if name == PROCESSES else ()) for name in names]


def containers_are_demanded() -> bool:
    """With reduced counts, where containers are demanded (`CONTAINERS=true`)."""
    return os.environ.get("CONTAINERS") == "true" and scaled(ci=1, soak=0) == 1
