"""A node of NATS is killed: an owner that was connected to it keeps its seat."""

import asyncio
from pathlib import Path

import pytest

from smcp_proto.errors import NotAllowed
from smcp_testing.member_process import member_process
from smcp_testing.nats_cluster import NODES, lead, open_cluster
from smcp_testing.registry_world import registries

BACK_S = 1.0
"""After which the owner finds another node."""


async def test_an_owner_that_reconnects_to_another_node_keeps_its_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_cluster(tmp_path) as (sound, _, hurt),
        registries(sound.url, kv_replicas=NODES),
        member_process(hurt.url) as owner,
        member_process(sound.url) as heir,
    ):
        await lead(heir.bus, sound)
        await owner.renew()
        await owner.join("lab", "computer", "pc")
        monkeypatch.setattr("smcp_bus.nats.client._RECONNECT_S", (BACK_S, BACK_S))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await hurt.kill()
        with pytest.raises(NotAllowed):
            await heir.join("lab", "computer", "pc")
        assert loop.time() - began > BACK_S, "it was asked when it was back"
        assert owner.bus.connected
