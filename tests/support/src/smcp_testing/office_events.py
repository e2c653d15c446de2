"""What the office of a `computer_office.World` was told, and when all there was to tell has been told."""

from typing import Any

from smcp_computer.outbox import CONFIG
from smcp_testing.computer_office import World
from smcp_testing.waiting import eventually


async def settled(here: World, server: str, *uris: str) -> None:
    """The server has been asked to tell of these, and what was told so far is forgotten."""

    async def agreed() -> bool:
        return await here.tell(server, "subscribed") == sorted(uris)  # type: ignore[no-any-return]

    await eventually(agreed, timeout=30)
    subscribed = here.computer.resources.upstream.subscribed
    await eventually(lambda: subscribed(server) == set(uris), timeout=30)
    await forgotten(here)


async def forgotten(here: World) -> None:
    """What there was to tell has been told, and is not looked at any more."""
    await all_told(here)
    here.heard.clear()


async def all_told(here: World) -> None:
    """What there was to tell has been told."""
    await eventually(lambda: not here.computer.outbox.untold)
    before = len(here.told(CONFIG))
    here.computer.outbox.changed(CONFIG)  # told after what is being told
    await next_told(here, CONFIG, before + 1)


async def next_told(here: World, verb: str, count: int = 1) -> list[dict[str, Any]]:
    """All that was told with this verb, once there is so much of it."""
    await eventually(lambda: len(here.told(verb)) >= count, timeout=30)
    return here.told(verb)
