"""What an operator has to live through, while calls go on: docs/operations.md says what is promised.

In the world of processes alone: what runs in containers is hurt there in the same ways by other tests.
"""

from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.e2e.scenarios import operation
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.shared import SharedWorld
from tests.e2e.worlds.world import World, lease_s

LEASE_S = lease_s(5)

pytestmark = pytest.mark.alone

SCENARIOS: list[Callable[[World], Awaitable[None]]] = [
    operation.secrets_are_renewed_while_calls_go_on,
    operation.nats_loses_its_store,
]


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorld]:
    world = SharedWorld(lambda: open_processes(tmp_path_factory.mktemp("operation"), lease_s=LEASE_S))
    yield world
    world.close()


@pytest.fixture(autouse=True)
def _nothing_left_behind(_no_task_left: None) -> None:
    """In place of that of all tests: the world is looked at when it ends."""


@pytest.fixture
def shared(of_all: SharedWorld) -> SharedWorld:
    of_all.open()
    return of_all


@pytest.mark.timeout(180 + 10 * LEASE_S)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_operation(
    scenario: Callable[[World], Awaitable[None]], shared: SharedWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.hurt() as world:
        world.waits.clear()
        await scenario(world)
    with capsys.disabled():
        for wait in world.waits:
            print(f"\n  {wait}", end="")  # noqa: T201 -- a test allows more than is promised: it shows what it saw
