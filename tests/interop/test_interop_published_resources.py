"""The unchanged published Agent lists the resources of our own Computer, in the shape that it knows."""

from pathlib import Path
from typing import Any

import pytest

from bench import published_env
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers.configs import context
from smcp_testing.waiting import eventually
from tests.interop.published import SELDOM, Kind, published_agent
from tests.interop.published_pair import LEASE_S, OFFICE

pytestmark = pytest.mark.timeout(published_env.INSTALL_S + 120)

WINDOW: dict[str, Any] = {
    "uri": "window://pages/main",
    "resource": {
        "title": "not in its shape",
        "description": "the main window",
        "mimeType": "text/html",
        "size": 7,
        "annotations": {"priority": 0.5, "audience": ["assistant"], "lastModified": "2026-01-15T08:30:00Z", "odd": 1},
        "_meta": {"fullscreen": True},
    },
}


@pytest.mark.rule("answers.unknown.client.get_resources.native")
@pytest.mark.parametrize("kind", SELDOM)
async def test_it_lists_the_resources_of_one_mcp_server_page_by_page(nats_url: str, tmp_path: Path, kind: Kind) -> None:
    paged = context("2025", host="paged", windows=5, page_size=2)
    servers = {
        "paged": paged,
        "new": context("2026", content=[WINDOW]),
        "plain": context("2025", without=["resources"]),
    }
    async with (
        gateway_world(nats_url, gateways=2, lease_s=LEASE_S) as world,
        published_agent(tmp_path, world.gateways[1].url, OFFICE, "anna", kind=kind) as anna,
    ):
        await anna.ready()
        async with native_computer(world, OFFICE, "box", servers):
            await eventually(lambda: anna.heard("tools"), timeout=30)
            assert set((await anna.run("get_config_from_computer", "box"))["servers"]) == set(servers)
            found = await anna.run("get_resources", "box", "new")
            assert found["resources"] == [
                {
                    "uri": "window://pages/main",
                    "name": "main",
                    "description": "the main window",
                    "mime_type": "text/html",
                    "size": 7,
                    "annotations": {
                        "priority": 0.5, "audience": ["assistant"], "last_modified": "2026-01-15T08:30:00Z",
                    },
                    "_meta": {"fullscreen": True},
                }
            ]  # fmt: skip
            assert set(found) == {"resources", "req_id"}
            uris, cursor = [], None
            while True:
                page = await anna.run("get_resources", "box", "paged", *([] if cursor is None else [cursor]))
                uris += [resource["uri"] for resource in page["resources"]]
                cursor = page.get("next_cursor")
                if cursor is None:
                    break
                assert len(page["resources"]) == 2
            assert uris == [f"window://paged/{number}" for number in range(5)]
            nobody = await anna.run("get_resources", "box", "nobody")
            assert (nobody["raised"], nobody["code"]) == ("SMCPProtocolError", 4014)
            unable = await anna.run("get_resources", "box", "plain")
            assert (unable["raised"], unable["code"]) == ("SMCPProtocolError", 4015)
            asked = {"agent": "anna", "req_id": "1", "computer": "box"}
            plain = await anna.ask("client:get_resources", payload=asked | {"mcp_server": "plain"})
            assert (plain["mcp_server"], plain["capability"]) == ("plain", "resources")
            for field, value in {"mcp_server": 7, "cursor": [1]}.items():
                wrong = await anna.ask("client:get_resources", payload=asked | {"mcp_server": "paged", field: value})
                assert (wrong["code"], wrong["details"]["field"]) == (400, field)
