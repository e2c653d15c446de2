"""`client:resources/read`: the choice of the MCP server, and its answer."""

import asyncio
from typing import Any, Literal

import pytest

from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.waiting import eventually

Era = Literal["2025", "2026"]
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
NOTE = {"uri": "note://1"}


@pytest.mark.rule("answers.resources.read.several")
async def test_a_uri_of_several_servers_is_read_at_the_one_used_last(nats_url: str) -> None:
    servers = {name: configs.context("2026", host=name, content=[NOTE]) for name in ("a", "b", "c")}
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)

        async def read_by() -> Any:
            return (await alice.ask("resources/read", uri="note://1")).get("serverId")

        # a read does not wait for a server that has not listed yet (ADR 0019)
        index = here.computer.resources.index
        await eventually(lambda: all(map(index.is_listed, servers)), timeout=30)
        assert await read_by() == "a"
        await here.call("c__reads", req_id="1")
        assert await read_by() == "c"
        await here.call("b__reads", req_id="2")
        assert await read_by() == "b"
        await here.tell("b", "misbehave", uri="note://1", how="not_found")
        assert await read_by() == "c", "a server that has it no more is not the end"
        for name in ("a", "c"):
            await here.tell(name, "misbehave", uri="note://1", how="not_found")
        error = await alice.error("resources/read", uri="note://1")
        assert error["data"] == {"uri": "note://1", "smcp_code": "SMCP_RESOURCE_NOT_FOUND"}


@pytest.mark.rule(
    "computer.resources.{computer.read,errors.not_found}",
    "answers.resources.read.host",
    "finder.{navigation.2,navigation.3,navigation.4,server.content,versus.granularity,versus.access}",
    "finder.{levels.0,levels.1,levels.2,levels.3,query.passed,scope.read,server.content.json}",
    "finder.practice.categories",
)
async def test_unlisted_uris_are_routed_by_host_or_template(nats_url: str) -> None:
    docs = configs.context("2025", host="com.docs", documents=1)
    view = configs.context("2026", host="com.view", windows=1)
    async with world(nats_url, docs=docs, view=view) as here:
        alice = ResourceAgent(here)

        async def text(uri: str) -> str:
            contents = (await alice.result("resources/read", uri=uri))["contents"]
            assert contents[0]["uri"] == uri
            return str(contents[0]["text"])

        assert '"total_count": 1' in await text("dpe://com.docs")
        assert '"pages"' in await text("dpe://com.docs/doc-0?depth=pages&limit=1")
        assert '"txt-001"' in await text("dpe://com.docs/doc-0/pages/0?categories=text")
        assert '"metadata"' in await text("dpe://com.docs/doc-0/elements/tbl-001")
        window = await alice.ask("resources/read", uri="window://com.view/0?priority=80")
        assert window["payload"]["result"]["contents"][0]["uri"] == "window://com.view/0", "the query was dropped"
        for uri in ("dpe://com.elsewhere/x", "window://com.elsewhere", "note://1", "x"):
            assert await alice.flat("resources/read", uri=uri) == (404, "SMCP_RESOURCE_NOT_FOUND")
        error = await alice.error("resources/read", uri="dpe://com.docs/unknown")
        assert error["data"]["smcp_code"] == "SMCP_RESOURCE_NOT_FOUND"


WRONG_SHAPES = [
    ("dpe://", "host: is empty"),
    ("dpe:///doc", "host: is empty"),
    ("dpe:com.example.desk", "scheme: "),
    ("DPE:/com.example.desk", "scheme: "),
    ("dpe://com.example.desk/d/pages/x", "sub-path: "),
    ("dpe://com.example.desk/d/pages/-1", "sub-path: "),
    ("dpe://com.example.desk/d/elements/", "sub-path: "),
    ("dpe://com.example.desk/d/other/1", "sub-path: "),
    ("dpe://com.example.desk/%zz", "doc-ref: "),
    ("dpe://com.example.desk/%ff", "doc-ref: "),
    ("dpe://com.example.desk/d#f", "fragment: "),
    ("dpe://u@com.example.desk/d", "host: "),
    ("dpe://com.example.desk/d?format=xml", "format: "),
    ("dpe://com.example.desk/d?depth=all", "depth: "),
    ("dpe://com.example.desk/d?offset=-1", "offset: "),
    ("dpe://com.example.desk/d?limit=0", "limit: "),
    ("dpe://com.example.desk/d?limit=101", "limit: "),
    ("dpe://com.example.desk/d?limit=1&limit=2", "limit: "),
    ("dpe://com.example.desk/d/pages/0?categories=nonsense", "categories: "),
    ("dpe://com.example.desk?depth=pages", "depth: has no meaning on level 0"),
    ("dpe://com.example.desk?limit=5", "limit: has no meaning on level 0"),
    ("dpe://com.example.desk/d?categories=table", "categories: has no meaning on level 1"),
    ("dpe://com.example.desk/d/pages/0?limit=5", "limit: has no meaning on level 2"),
    ("dpe://com.example.desk/d/elements/e?offset=0", "offset: has no meaning on level 3"),
    ("window://", "host: is empty"),
    ("window://com.example.desk/%zz", "path: "),
    ("window:x", "scheme: "),
]


@pytest.mark.rule("answers.resources.read.shape", "answers.finder.level")
async def test_a_uri_of_a_wrong_shape_is_refused_by_its_field(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026", documents=1)) as here:
        alice = ResourceAgent(here)
        for uri, reason in WRONG_SHAPES:
            for method in ("resources/read", "resources/subscribe", "resources/unsubscribe"):
                refused = await alice.ask(method, uri=uri)
                assert refused["code"] == 400, uri
                assert refused["details"]["field"] == "payload.params.uri"
                assert refused["details"]["reason"].startswith(reason), uri


@pytest.mark.rule("answers.resources.read.shape")
async def test_a_listed_resource_is_read_even_if_its_uri_is_malformed(nats_url: str) -> None:
    odd = ["dpe://h/a/b/c", "window://h?x=1", "no scheme", "DPE://H/%zz"]
    async with world(nats_url, one=configs.context("2025", content=[{"uri": uri} for uri in odd])) as here:
        alice = ResourceAgent(here)
        assert await alice.uris() == odd
        for uri in odd:
            assert (await alice.result("resources/read", uri=uri))["contents"][0]["text"] == f"text of {uri}"


@pytest.mark.rule("answers.resources.windows")
async def test_a_window_is_read_and_subscribed_to_by_the_uri_that_the_desktop_shows(nats_url: str) -> None:
    shown, listed = "window://h/a", "window://h/a?priority=80"
    rival = configs.context("2025", host="h", windows=1)
    view = configs.context("2026", content=[{"uri": listed}])
    async with world(nats_url, archive=rival, view=view) as here:
        alice = ResourceAgent(here)
        assert f"{shown}\n\ntext of {listed}" in (await here.ask("get_desktop"))["desktops"]
        answer = await alice.ask("resources/read", uri=shown)
        assert answer["serverId"] == "view"
        assert answer["payload"]["result"]["contents"][0]["text"] == f"text of {listed}"
        named = await alice.result("resources/read", server="view", uri=shown)
        assert named == answer["payload"]["result"]
        assert (await alice.ask("resources/subscribe", uri=shown))["serverId"] == "view"
        await here.tell("view", "update", uri=listed)
        await eventually(lambda: here.told("resources_updated"))
        (told,) = here.told("resources_updated")
        assert (told["agent"], told["payload"]["params"]["uri"]) == ("alice", listed)
        await alice.result("resources/unsubscribe", uri=shown)
        assert here.computer.resources.subscriptions.agents == frozenset()


async def test_a_read_does_not_wait_for_a_silent_server_if_another_lists_the_uri(nats_url: str) -> None:
    silent = configs.context("2025", host="silent", windows=1, misbehave={"list": "never"})
    well = configs.context("2026", host="well", windows=1)
    async with world(nats_url, {"read_s": 25.0}, silent=silent, well=well) as here:
        alice = ResourceAgent(here)
        await eventually(lambda: here.computer.resources.index.is_listed("well"), timeout=30)
        assert (await alice.result("resources/read", uri="window://well/0", timeout=15))["contents"]
        listed = await alice.result("resources/list", timeout=6)
        assert listed["meta"] == {"a2c_skipped_servers": ["silent"]}


@pytest.mark.rule("answers.resources.read.document")
@ERAS
async def test_a_page_is_read_at_the_server_that_lists_its_document(nats_url: str, era: Era) -> None:
    servers = {
        "archive": configs.context("2025", host="h", content=[{"document": {"ref": "old"}}]),
        "docs": configs.context(era, host="h", content=[{"document": {"ref": "new"}}]),
    }
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        for uri in ("dpe://h/new/pages/0", "dpe://h/new/elements/tbl-001?format=text", "dpe://h/new?depth=pages"):
            assert (await alice.ask("resources/read", uri=uri))["serverId"] == "docs"
        assert (await alice.ask("resources/read", uri="dpe://h/old/pages/1"))["serverId"] == "archive"
        assert await here.tell("archive", "reads") == {"dpe://h/old/pages/1": 1}, "it was not asked for the others"
        assert (await alice.ask("resources/read", uri="dpe://h"))["serverId"] == "archive", "by name"
        await here.call("docs__reads", req_id="used")
        assert (await alice.ask("resources/read", uri="dpe://h"))["serverId"] == "docs", "the one used last"
        assert (await alice.ask("resources/read", uri="dpe://h/old/pages/0"))["serverId"] == "archive"


@pytest.mark.rule("computer.resources.errors.mcp", "computer.resources.errors.not_found")
@ERAS
async def test_an_answer_without_contents_becomes_a_json_rpc_error(nats_url: str, era: Era) -> None:
    not_found = -32002 if era == "2025" else -32602
    cases = [
        ("refuse", -32602, "SMCP_RESOURCE_NOT_FOUND"),
        ("not_found", not_found, "SMCP_RESOURCE_NOT_FOUND"),
        ("no_list", -32603, None),
        ("fail", None, None),
        ("vanish", not_found, "SMCP_RESOURCE_NOT_FOUND"),
    ]
    async with world(nats_url, one=configs.context(era, content=[NOTE])) as here:
        alice = ResourceAgent(here)
        for how, code, smcp_code in cases:
            await here.tell("one", "misbehave", uri="note://1", how=how)
            error = await alice.error("resources/read", uri="note://1")
            assert error["code"] == code or code is None, how
            assert (error.get("data") or {}).get("smcp_code") == smcp_code, how
            assert "secret" not in str(error), "the text of an exception stays where it was raised"
            if how == "fail":
                assert error["message"] == "the MCP server 'one' failed"


@pytest.mark.rule("computer.resources.models.contents")
async def test_contents_that_differ_from_the_list_pass_unchanged(nats_url: str) -> None:
    sent: dict[str, list[dict[str, Any]]] = {
        "mime": [{"uri": "note://1", "mimeType": "image/png", "text": "text of note://1"}],
        "blob": [{"uri": "note://1", "mimeType": "image/png", "blob": "AAEC"}],
        "no_contents": [],
        "empty_text": [{"uri": "note://1", "text": ""}],
        "other_uri": [{"uri": "window://elsewhere", "mimeType": "text/plain", "text": "text of note://1"}],
    }
    async with world(nats_url, one=configs.context("2026", content=[NOTE])) as here:
        alice = ResourceAgent(here)
        for how, contents in sent.items():
            await here.tell("one", "misbehave", uri="note://1", how=how)
            assert (await alice.result("resources/read", uri="note://1"))["contents"] == contents


@pytest.mark.rule("computer.resources.computer.resilient", "answers.resources.read.silent")
async def test_a_silent_server_is_408_a_dead_one_503_and_others_keep_working(nats_url: str) -> None:
    slow = configs.context("2025", content=[{"uri": "note://never"}, {"uri": "note://die"}])
    async with world(nats_url, slow=slow, well=configs.context("2026", content=[NOTE])) as here:
        alice = ResourceAgent(here)
        await here.tell("slow", "misbehave", uri="note://never", how="never")
        never = asyncio.create_task(alice.flat("resources/read", uri="note://never", timeout=3))
        assert (await alice.result("resources/read", uri="note://1"))["contents"]
        assert await never == (408, None)
        await here.tell("slow", "misbehave", uri="note://die", how="die")
        assert await alice.flat("resources/read", uri="note://die") == (503, None)
        assert (await alice.result("resources/read", uri="note://1"))["contents"]


@pytest.mark.rule("answers.resources.read.large")
async def test_contents_up_to_the_limit_of_the_bus_arrive_whole_and_above_it_are_413(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026", content=[NOTE, {"uri": "note://big"}])) as here:
        alice = ResourceAgent(here)
        large = "x" * 20_000_000
        await here.tell("one", "put", uri="note://large", contents=[{"uri": "note://large", "text": large}])
        await eventually(lambda: "note://large" in here.computer.resources.index.known("one"))
        assert (await alice.result("resources/read", uri="note://large"))["contents"][0]["text"] == large
        await here.tell("one", "misbehave", uri="note://big", how="big")
        refused = await alice.ask("resources/read", uri="note://big")
        assert refused["code"] == 413
        assert refused["details"]["limit"] == 32 * 1024 * 1024 < refused["details"]["size"]
        assert (await alice.result("resources/read", uri="note://1"))["contents"]
