"""`client:resources/list`, `read` and `templates/list` of a native Computer with real servers of MCP 2025 and 2026."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import pytest

from smcp_computer import finder
from smcp_computer.mcp import supervisor
from smcp_computer.mcp.transports import connect
from smcp_service.health import Readiness, serve_health
from smcp_service.metrics import Metrics
from smcp_service.settings import ServiceSettings
from smcp_testing.computer_office import NAME, OFFICE, World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.profiles import scaled
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.scraping import Samples, scraped
from smcp_testing.waiting import eventually

Era = Literal["2025", "2026"]
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
SELDOM = pytest.mark.parametrize("era", ["2025", "2026"][: scaled(ci=1, soak=2)])
"""Where the other era says little new."""
NOTE = {"uri": "note://1"}


def windows(host: str, count: int) -> list[str]:
    return [f"window://{host}/{number}" for number in range(count)]


@pytest.mark.rule(
    "computer.resources.{events.list,models.page,computer.list,computer.pages,payload.list}",
    "computer.resources.{flow.list.fan_out,flow.list.pages}",
    "answers.resources.cursor.restart",
    "events.must.computer.all",
)
async def test_a_paged_list_over_all_servers_continues_after_a_restart_of_one(nats_url: str) -> None:
    old = configs.context("2025", host="old", windows=130, page_size=50)
    new = configs.context("2026", host="new", windows=30)
    async with world(nats_url, b=new, a=old, toolbox=configs.stdio()) as here:
        alice = ResourceAgent(here)
        everything = windows("old", 130) + windows("new", 30)
        assert await alice.uris() == everything
        first = await alice.result("resources/list")
        assert len(first["resources"]) == 100
        starts = here.computer.fleet.supervisors["a"].starts
        with pytest.raises(Exception, match="went away"):
            await here.tell("a", "die")
        await eventually(lambda: here.computer.fleet.supervisors["a"].starts > starts, timeout=30)
        rest = await alice.result("resources/list", cursor=first["nextCursor"])
        assert [each["uri"] for each in rest["resources"]] == everything[100:]
        assert "nextCursor" not in rest


async def test_pages_continue_and_name_a_server_that_is_restarting(
    nats_url: str,
) -> None:
    old = configs.context("2025", host="old", windows=130)
    async with world(nats_url, a=old, b=configs.context("2026", host="new", windows=30)) as here:
        alice = ResourceAgent(here)
        first = await alice.result("resources/list")
        assert "meta" not in first
        backoff = here.computer.fleet.supervisors["a"]._backoff
        backoff.first_s = backoff.longest_s = 600.0  # it is away for as long as the test takes
        with pytest.raises(Exception, match="went away"):
            await here.tell("a", "die")
        await eventually(lambda: here.computer.resources.index.servers() == ["b"], timeout=30)
        rest = await alice.result("resources/list", cursor=first["nextCursor"])
        assert [each["uri"] for each in rest["resources"]] == windows("new", 30)
        assert rest["meta"] == {"a2c_skipped_servers": ["a"]}
        anew = await alice.result("resources/list")
        assert [each["uri"] for each in anew["resources"]] == windows("new", 30)
        assert anew["meta"] == {"a2c_skipped_servers": ["a"]}


async def test_a_server_that_just_ended_is_listed_as_skipped(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = asyncio.Event()

    @asynccontextmanager
    async def lingering(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async with connect(*arguments, **options) as connection:
            try:
                yield connection
            finally:
                await may_end.wait()

    monkeypatch.setattr(supervisor, "connect", lingering)
    a, b = configs.context("2025", host="a", windows=1), configs.context("2026", host="b", windows=1)
    async with world(nats_url, a=a, b=b) as here:
        try:
            alice = ResourceAgent(here)
            first = await alice.result("resources/list")
            with pytest.raises(Exception, match="went away"):
                await here.tell("a", "die")
            await eventually(lambda: here.computer.resources.index.servers() == ["b"], timeout=30)
            listed = await alice.result("resources/list")
            assert listed == {"resources": first["resources"][1:], "meta": {"a2c_skipped_servers": ["a"]}}
            for method, params in (("resources/list", {}), ("resources/read", {"uri": "window://a/0"})):
                assert await alice.flat(method, server="a", **params) == (503, None)
        finally:
            may_end.set()


@pytest.mark.rule(
    "computer.resources.{events.read,models.resource,models.contents,computer.read,payload.read}",
    "computer.resources.{payload.id,payload.envelope,compat.binary,models.aligned}",
    "desktop.annotations.last_modified.passed",
    "answers.resources.items.server",
)
@ERAS
async def test_a_resource_is_listed_and_read_as_its_server_sends_it(nats_url: str, era: Era) -> None:
    resource = {"title": "T", "annotations": {"priority": 0.5, "odd": [1]}, "_meta": {"x": {"y": 1}}, "more": None}
    blob = base64.b64encode(bytes(range(256))).decode()
    contents = [
        {"uri": "note://1", "mimeType": "text/x", "text": "é\u0000\n", "_meta": {"a": 1}, "later": True},
        {"uri": "note://2", "mimeType": "image/png", "blob": blob},
    ]
    note = {"uri": "note://1", "resource": resource, "contents": contents}
    async with world(nats_url, one=configs.context(era, content=[note])) as here:
        alice = ResourceAgent(here)
        listed = await alice.ask("resources/list", request_id="an id")
        assert listed["payload"]["result"]["resources"] == [
            {"uri": "note://1", "name": "1", "mimeType": "text/plain", **resource, "serverId": "one"}
        ]
        assert "serverId" not in listed
        read = await alice.ask("resources/read", uri="note://1")
        assert read["payload"]["result"]["contents"] == contents
        assert read["serverId"] == "one"
        assert (await alice.ask("resources/read", server="one", uri="note://1"))["payload"] == read["payload"]


@pytest.mark.rule(
    "computer.resources.{payload.envelope,payload.server_id,errors.not_supported,compat.degrade}",
    "computer.resources.notes.computer",
)
async def test_only_the_named_server_is_asked(nats_url: str) -> None:
    a = configs.context("2025", host="a", windows=1, content=[NOTE])
    b = configs.context("2026", host="b", windows=1, content=[NOTE])
    async with world(nats_url, a=a, b=b, none=configs.context("2026", without=["resources"])) as here:
        alice = ResourceAgent(here)
        assert await alice.uris(server="b") == ["window://b/0", "note://1"]
        assert (await alice.ask("resources/list", server="b"))["serverId"] == "b"
        assert (await alice.ask("resources/read", server="b", uri="note://1"))["serverId"] == "b"
        templates = await alice.result("resources/templates/list", server="b")
        assert [each["name"] for each in templates["resourceTemplates"]] == ["page", "element"]
        for method, params in {
            "resources/list": {},
            "resources/templates/list": {},
            "resources/read": {"uri": "note://1"},
            "resources/subscribe": {"uri": "note://1"},
        }.items():
            assert await alice.flat(method, server="nobody", **params) == (404, "SMCP_RESOURCE_NOT_FOUND")
            assert await alice.flat(method, server="none", **params) == (400, "SMCP_RESOURCE_NOT_SUPPORTED")
        said = (await alice.ask("resources/list", server="nne"))["message"]
        assert said == "this Computer has no MCP server 'nne'; did you mean 'none'?"


@pytest.mark.rule("answers.resources.cursor.server")
async def test_a_cursor_of_another_server_is_refused(nats_url: str) -> None:
    a, b = (configs.context("2025", host=host, windows=101) for host in "ab")
    async with world(nats_url, a=a, b=b) as here:
        alice = ResourceAgent(here)
        in_a = (await alice.result("resources/list"))["nextCursor"]
        in_b = (await alice.result("resources/list", server="b"))["nextCursor"]
        for server, cursor in (("b", in_a), ("a", in_b)):
            refused = await alice.ask("resources/list", server=server, cursor=cursor)
            assert (refused["code"], refused["details"]["field"]) == (400, "payload.params.cursor")
        for server, cursor in (("a", in_a), ("b", in_b)):
            rest = await alice.result("resources/list", server=server, cursor=cursor)
            assert [each["uri"] for each in rest["resources"]] == windows(server, 101)[100:]


@pytest.mark.rule("computer.resources.computer.skip", "computer.resources.compat.degrade")
async def test_servers_without_resources_are_skipped_and_counted(nats_url: str) -> None:
    none = configs.context("2025", without=["resources"])
    async with counting(nats_url, one=configs.context("2026", host="h", windows=1), none=none) as (here, counted):
        alice = ResourceAgent(here)
        assert await alice.uris() == ["window://h/0"]
        await alice.uris()
        await alice.result("resources/templates/list")
        await here.ask("get_finder")
        assert of_operations("servers_without_resources", await counted()) == {
            "resources_list": 2, "resources_templates_list": 1, "get_finder": 1, "get_desktop": 0,
        }  # fmt: skip


@pytest.mark.rule("computer.resources.computer.resilient")
async def test_servers_that_cannot_list_and_documents_without_room_are_counted(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "CACHE_BYTES", 0)
    bad = configs.context("2025", host="bad", windows=1, without=["list_changed"])
    fine = configs.context("2026", host="fine", windows=1, documents=2)
    async with counting(nats_url, bad=bad, fine=fine) as (here, counted):
        alice = ResourceAgent(here)
        await here.tell("bad", "misbehave", uri="list", how="refuse")
        assert "window://bad/0" not in await alice.uris()
        for verb in ("get_desktop", "get_desktop", "get_finder"):
            await here.ask(verb)
        samples = await counted()
        assert of_operations("servers_left_out", samples) == {
            "resources_list": 1, "resources_templates_list": 0, "get_finder": 1, "get_desktop": 2,
        }  # fmt: skip
        assert samples["smcp_computer_documents_not_kept_total", ()] == 2


@asynccontextmanager
async def counting(nats_url: str, **servers: Any) -> AsyncIterator[tuple[World, Callable[[], Awaitable[Samples]]]]:
    """A Computer, and what Prometheus reads from it."""
    metrics = Metrics()
    async with (
        serve_health(ServiceSettings(), Readiness(), metrics) as health,
        world(nats_url, {"metrics": metrics}, **servers) as here,
    ):
        yield here, partial(scraped, health.url)


def of_operations(counter: str, samples: Samples) -> dict[str, float]:
    return {
        dict(labels)["operation"]: value
        for (name, labels), value in samples.items()
        if name == f"smcp_computer_{counter}_total"
    }


@pytest.mark.rule(
    "computer.resources.{events.templates,models.template,computer.templates,payload.templates}",
    "computer.resources.models.routing",
    "finder.server.templates",
)
async def test_templates_with_one_name_are_prefixed_by_their_server(nats_url: str) -> None:
    a, b = configs.context("2025", host="a"), configs.context("2026", host="b")
    async with world(nats_url, a=a, b=b, toolbox=configs.stdio()) as here:
        result = await ResourceAgent(here).result("resources/templates/list")
        assert [(each["serverId"], each["name"], each["uriTemplate"]) for each in result["resourceTemplates"]] == [
            ("a", "a__page", "dpe://a/{doc_ref}/pages/{page_index}"),
            ("a", "a__element", "dpe://a/{doc_ref}/elements/{element_id}"),
            ("b", "b__page", "dpe://b/{doc_ref}/pages/{page_index}"),
            ("b", "b__element", "dpe://b/{doc_ref}/elements/{element_id}"),
        ]


@pytest.mark.rule("computer.resources.computer.resilient", "computer.resources.flow.list.fan_out")
@SELDOM
async def test_a_server_whose_list_fails_loses_only_its_own_items(
    nats_url: str, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_computer.resources.index.LIST_S", 1.0)
    bad = configs.context(era, host="bad", windows=2, without=["list_changed"])
    async with world(nats_url, bad=bad, good=configs.context(era, host="good", windows=2)) as here:
        alice = ResourceAgent(here)
        for how in ("refuse", "fail", "no_list", "bad_items", "endless", "never", "die"):
            await here.tell("bad", "misbehave", uri="list", how=how)
            kept = windows("bad", 2) if how in ("bad_items", "endless") else []
            assert await alice.uris() == kept + windows("good", 2), how
            if how == "fail":
                assert "secret" not in str(await alice.ask("resources/list", server="bad"))


@pytest.mark.rule("computer.resources.computer.resilient")
async def test_a_server_that_never_lists_delays_other_requests_by_a_bounded_time(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_computer.resources.index.LIST_S", 1.5)
    silent = configs.context("2025", host="silent", windows=1, without=["list_changed"])
    async with world(nats_url, silent=silent, well=configs.context("2026", host="well", windows=1)) as here:
        alice = ResourceAgent(here)
        await here.tell("silent", "misbehave", uri="list", how="never")
        assert await alice.uris(timeout=30) == ["window://well/0"]
        assert (await alice.result("resources/read", uri="dpe://well"))["contents"]
        assert (await here.ask("get_finder"))["documents"] == []
        await here.tell("silent", "misbehave", uri="list", how="")

        async def is_back() -> bool:
            return await alice.uris() == ["window://silent/0", "window://well/0"]

        await eventually(is_back, timeout=30)


@pytest.mark.rule("computer.resources.errors.mcp")
async def test_a_refused_list_is_an_error_if_only_that_server_was_asked(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2025", windows=1, without=["list_changed"])) as here:
        alice = ResourceAgent(here)
        await here.tell("one", "misbehave", uri="list", how="refuse")
        answer = await alice.ask("resources/list", server="one")
        assert answer["payload"]["error"] == {"code": -32602, "message": "no list for you"}
        assert answer["serverId"] == "one"
        await here.tell("one", "misbehave", uri="list", how="no_list")
        error = await alice.error("resources/list", server="one")
        assert error["code"] == -32603
        await here.tell("one", "misbehave", uri="list", how="never")
        assert await alice.flat("resources/list", server="one", timeout=2) == (408, None)


@pytest.mark.rule("computer.resources.{payload.list,payload.read,payload.subscribe,compat.range,compat.batch}")
async def test_requests_of_a_wrong_form_are_refused_by_their_field(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026", content=[NOTE])) as here:
        alice = ResourceAgent(here)

        async def refused(method: str, **params: Any) -> tuple[str, str]:
            answer = await alice.ask(method, **params)
            assert answer["code"] == 400, answer
            return answer["details"]["field"], answer["details"]["reason"]

        assert (await refused("resources/list", cursor="x"))[0] == "payload.params.cursor"
        assert (await refused("resources/list", cursor=7))[0] == "payload.params.cursor"
        assert (await refused("resources/templates/list", cursor="e30"))[0] == "payload.params.cursor"
        assert (await refused("resources/read"))[0] == "payload.params.uri"
        assert (await refused("resources/read", uri=""))[0] == "payload.params.uri"
        assert (await refused("resources/read", uri="x" * 9000))[0] == "payload.params.uri"
        assert await refused("resources/read", uri="note://1", range=[0, 9]) == (
            "payload.params.range",
            "not supported yet",
        )
        assert await refused("resources/subscribe", uri="note://1", uris=["note://1"]) == (
            "payload.params.uris",
            "not supported yet",
        )
        assert (await refused("resources/read", server="", uri="note://1"))[0] == "serverId"


@pytest.mark.rule("computer.resources.payload.id")
async def test_a_reply_carries_the_id_of_its_request(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026")) as here:
        body = {
            "roomId": OFFICE, "computerId": NAME,
            "payload": {"jsonrpc": "2.0", "id": "x", "method": "resources/list"},
        }  # fmt: skip
        answer = await here.ask("resources_list", **body)
        assert answer["req_id"] == "r1"
        assert answer["payload"] == {"jsonrpc": "2.0", "id": "x", "result": {"resources": []}}
