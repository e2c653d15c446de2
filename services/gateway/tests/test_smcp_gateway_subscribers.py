"""Subscriptions to resources of a Computer on Socket.IO: its gateway tells those who subscribed, and nobody else."""

from typing import Any

import orjson
import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_gateway.computers import subscriptions
from smcp_proto.errors import MAX_SUBSCRIPTIONS
from smcp_testing.gateway_world import NAMESPACE, reply
from smcp_testing.granting_computer import (
    OFFICE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UPDATED,
    URI,
    ask,
    asking,
    heard,
    scene,
    updated,
)
from smcp_testing.waiting import eventually


@pytest.mark.rule("computer.resources.{server.registry,events.updated}", "answers.resources.subscribers")
async def test_an_update_reaches_only_subscribers_and_is_dropped_without_any(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        assert await box.updated() is None
        assert await heard(anna, box) == []
        answer = await ask(anna, req_id="r1", unknown=[1])
        assert answer["payload"] == {"jsonrpc": "2.0", "id": 7, "result": {}}
        assert box.asked == [asking(SUBSCRIBE, req_id="r1", unknown=[1], agent="anna")]
        assert await box.updated(more={"x": 1}) is None
        assert await box.updated("file:///other") is None
        await eventually(lambda: anna.told(UPDATED))
        assert anna.told(UPDATED) == [updated() | {"agent": "anna", "more": {"x": 1}}]
        assert await heard(anna, box) == [URI]
        assert await box.updated(agent="bert") is None
        assert await heard(anna, box) == []
        assert await box.updated(agent="anna") is None
        assert await heard(anna, box) == [URI]


@pytest.mark.rule("answers.resources.subscribers.asked")
async def test_an_update_before_the_answer_to_a_subscribe_is_passed_on(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):

        async def told_first(request: dict[str, Any]) -> dict[str, Any]:
            assert await box.updated() is None
            return await box.answer(request)

        box.client.sio.on(SUBSCRIBE, told_first, namespace=NAMESPACE)
        assert "result" in (await ask(anna))["payload"]
        assert await heard(anna, box) == [URI]


@pytest.mark.rule("answers.resources.subscribers.query")
async def test_the_query_of_a_document_does_not_matter_for_its_subscription(nats_url: str) -> None:
    page = "dpe://docs/d/pages/0"
    async with scene(nats_url) as (_, anna, box):
        await ask(anna, uri=f"{page}?format=markdown")
        assert box.asked[0]["payload"]["params"]["uri"] == f"{page}?format=markdown", "it is asked as the Agent did"
        await box.updated(page)
        assert await heard(anna, box) == [page]
        await ask(anna, UNSUBSCRIBE, uri=f"{page}?format=text")
        await box.updated(page)
        assert await heard(anna, box) == []


@pytest.mark.rule("computer.resources.server.registry")
async def test_unsubscribing_ends_the_updates(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        await ask(anna)
        await ask(anna, uri="file:///2")
        assert (await ask(anna, UNSUBSCRIBE))["payload"]["result"] == {}
        for uri in (URI, "file:///2"):
            await box.updated(uri)
        assert await heard(anna, box) == ["file:///2"]


@pytest.mark.rule("answers.resources.subscribers.granted")
async def test_a_refused_subscription_does_not_count_and_its_error_is_relayed(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        answer = await ask(anna, uri=box.refused)
        assert answer["payload"]["error"]["data"] == {"smcp_code": "SMCP_SUBSCRIPTION_NOT_SUPPORTED"}
        await box.updated(box.refused)
        assert await heard(anna, box) == []
        await ask(anna)
        box.refused = URI
        assert "error" in (await ask(anna, UNSUBSCRIBE))["payload"]
        await box.updated()
        assert await heard(anna, box) == [URI]


@pytest.mark.rule("answers.resources.subscribers")
async def test_an_update_of_a_native_computer_reaches_only_the_agent_that_it_names(nats_url: str) -> None:
    async def silent(verb: str, _: Incoming) -> Reply:
        return reply({"verb": verb})

    async with scene(nats_url) as (world, anna, box), world.computer(OFFICE, "tiny", silent) as tiny:
        for named in ({"agent": "bert"}, {"agent": "anna"}, {}):
            said = orjson.dumps(updated() | {"computerId": "tiny"} | named)
            await tiny.registry.tell((OFFICE, "computer", "tiny"), "resources_updated", said)
        await eventually(lambda: len(anna.told(UPDATED)) == 2)
        assert [told.get("agent") for told in anna.told(UPDATED)] == ["anna", None]
        assert await heard(anna, box) == [URI, URI]


@pytest.mark.rule("answers.resources.subscribers.limit")
async def test_too_many_subscriptions_are_429_and_the_computer_is_not_asked(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_SUBSCRIPTIONS == 1000, "as docs/protocol-answers.md says"
    monkeypatch.setattr(subscriptions, "MAX_SUBSCRIPTIONS", 5)
    async with scene(nats_url) as (_, anna, box):
        for number in range(5):
            assert "result" in (await ask(anna, uri=f"file:///{number}"))["payload"]
        refused = await ask(anna, uri="file:///5")
        assert refused["code"] == 429
        assert refused["details"] == {"smcp_code": "SMCP_RATE_LIMITED", "limit": 5}
        assert len(box.asked) == 5
        await ask(anna, UNSUBSCRIBE, uri="file:///0")
        assert "result" in (await ask(anna, uri="file:///5"))["payload"]


@pytest.mark.rule("answers.resources.subscribers.own", "computer.resources.server.routing.room")
async def test_an_agent_that_names_another_office_subscribes_to_nothing(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        for event in (SUBSCRIBE, UNSUBSCRIBE):
            refused = await ask(anna, event, roomId="other")
            assert (refused["code"], refused["details"]) == (403, {"field": "roomId"})
            unknown = await ask(anna, event, computerId="nobody")
            assert (unknown["code"], unknown["details"]) == (404, {"computer": "nobody"})
        assert box.asked == []
