"""The notifications to the office of a `computer_office.World`, and waiting until none is pending."""

from typing import Any

from smcp_computer.outbox import CONFIG
from smcp_testing.computer_office import World
from smcp_testing.waiting import eventually


async def settled(here: World, server: str, *uris: str) -> None:
    """Wait until the server has these subscriptions; drop the notifications so far."""

    async def agreed() -> bool:
        return await here.tell(server, "subscribed") == sorted(uris)  # type: ignore[no-any-return]

    await eventually(agreed, timeout=30)
    subscribed = here.computer.resources.upstream.subscribed
    await eventually(lambda: subscribed(server) == set(uris), timeout=30)
    await forgotten(here)


async def forgotten(here: World) -> None:
    """Wait until all pending notifications were sent; drop them."""
    await all_told(here)
    here.heard.clear()


async def all_told(here: World) -> None:
    """Wait until all pending notifications were sent."""
    await eventually(lambda: not here.computer.outbox.waiting)
    before = len(here.told(CONFIG))
    here.computer.outbox.changed(CONFIG)  # sent after the one that is being sent
    await next_told(here, CONFIG, before + 1)


async def next_told(here: World, verb: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait for `count` notifications with this verb; returns all of them."""
    await eventually(lambda: len(here.told(verb)) >= count, timeout=30)
    return here.told(verb)
