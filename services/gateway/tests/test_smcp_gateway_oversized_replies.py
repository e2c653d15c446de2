"""A desktop and a page of documents that are larger than the Agent's client takes are refused."""

import orjson
import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_testing.gateway_world import MIB, connected, gateway_world

OFFICE = "office"


@pytest.mark.rule("answers.desktop.large", "answers.finder.large")
async def test_a_desktop_or_catalog_above_the_limit_of_the_client_is_413(nats_url: str) -> None:
    replies = {
        "get_desktop": {"desktops": ["x" * 2 * MIB], "req_id": "r1"},
        "get_finder": {"documents": [{"summary": "x" * 2 * MIB}], "total_count": 1, "req_id": "r1"},
    }

    async def serve(verb: str, incoming: Incoming) -> Reply:
        return Reply(orjson.dumps(replies[verb]))

    async with gateway_world(nats_url) as world, world.computer(OFFICE, "box", serve):
        for auth, takes in ((None, 4 * MIB), ({"max_message": MIB}, MIB)):
            async with connected(world.url, auth=auth) as anna:
                await anna.join("agent", "anna", OFFICE)
                for verb, whole in replies.items():
                    answer = await anna.call(f"client:{verb}", {"agent": "anna", "req_id": "r1", "computer": "box"})
                    if takes > 2 * MIB:
                        assert answer == whole
                    else:
                        assert answer["code"] == 413
                        assert answer["details"]["limit"] < answer["details"]["size"]
                assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
