"""Resource updates of a Computer on Socket.IO: sent at once, or together where they come fast."""

import asyncio
from typing import Any

import pytest

from smcp_bus import outbox
from smcp_bus.registry_client import RegistryClient
from smcp_proto.errors import Unavailable
from smcp_proto.schemas.resources import MISSED
from smcp_testing.gateway_world import NAMESPACE
from smcp_testing.granting_computer import BOX, UPDATED, ask, scene, updated
from smcp_testing.waiting import eventually

KIB = 1024


@pytest.mark.rule("answers.resources.flood")
async def test_an_agent_is_told_to_subscribe_again_after_too_many_updates_without_a_registry(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_BYTES", 4 * KIB)
    failing = False
    told_well = RegistryClient.tell

    async def tell(self: RegistryClient, *told: Any, **asked: Any) -> Any:
        if failing:
            raise Unavailable("no registry answered")
        return await told_well(self, *told, **asked)

    monkeypatch.setattr(RegistryClient, "tell", tell)
    async with scene(nats_url, lease_s=60.0) as (_, anna, box):
        for number in range(30):
            await ask(anna, uri=f"file:///whole/{number}")
        failing = True
        for number in range(30):
            assert await box.client.call(UPDATED, updated(f"file:///whole/{number}", "t" * KIB)) is None
        assert anna.told(UPDATED) == []
        failing = False
        await eventually(lambda: any(each.get(MISSED) for each in anna.told("notify:resources/list_changed")))
        assert len(anna.told(UPDATED)) < 10


async def test_a_resource_that_changes_constantly_is_sent_as_often_as_by_a_native_computer(
    nats_url: str,
) -> None:
    async with scene(nats_url, lease_s=60.0) as (_, anna, box):
        await ask(anna)
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 300
        for number in range(count):
            await box.client.sio.emit(UPDATED, updated(title=str(number)), namespace=NAMESPACE)
        assert await box.client.call("server:update_config", {"computer": BOX}) is None
        took = loop.time() - began
        await eventually(lambda: anna.told("notify:update_config"))
        titles = [said["payload"]["params"]["title"] for said in anna.told(UPDATED)]
        assert titles == sorted(titles, key=int)
        assert titles[-1] == str(count - 1)
        assert len(titles) <= 2 + took / outbox.GATHER_S
