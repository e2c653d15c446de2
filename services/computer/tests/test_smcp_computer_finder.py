"""`client:get_finder` of a native Computer with real servers of MCP 2025 and 2026."""

import json
from typing import Any, Literal

import pytest

from smcp_computer import finder
from smcp_testing.computer_office import World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.profiles import scaled
from smcp_testing.waiting import Stopwatch, eventually

Era = Literal["2025", "2026"]
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
SELDOM = pytest.mark.parametrize("era", ["2026", "2025"][: scaled(ci=1, soak=2)])
"""Where the other era says little new."""


def document(ref: str, **fields: Any) -> dict[str, Any]:
    return {"document": {"ref": ref, "title": f"Title of {ref}", **fields}}


async def refs(here: World, **asked: Any) -> list[str]:
    return [each["doc_ref"] for each in (await here.ask("get_finder", **asked))["documents"]]


@pytest.mark.rule(
    "finder.{computer.unchanged,flow.pull.organize,navigation.1,server.level_1,versus.volume}",
    "finder.{changes.pull,practice.summary,practice.page_count}",
    "events.{must.computer.all,flow.finder.8}",
)
@SELDOM
async def test_the_catalog_has_the_metadata_of_level_1(nats_url: str, era: Era) -> None:
    async with world(nats_url, one=configs.context(era, host="com.docs", windows=1, documents=2)) as here:
        found = await here.ask("get_finder", req_id="r9")
        assert (found["total_count"], found["req_id"]) == (2, "r9")
        assert found["documents"][0] == {
            "doc_ref": "doc-0",
            "uri": "dpe://com.docs/doc-0",
            "file_uri": "file:///data/doc-0.xlsx",
            "file_type": "xlsx",
            "title": "Report doc-0",
            "page_count": 2,
            "keywords": ["report", "doc-0"],
            "summary": "All about doc-0",
            "last_modified": "2026-01-15T08:30:00Z",
        }


@pytest.mark.rule(
    "finder.{update.pull,update.list,update.content,versus.life,changes.pull,practice.on_demand}",
    "finder.practice.notices",
)
@ERAS
async def test_metadata_are_read_again_after_an_announced_change(nats_url: str, era: Era) -> None:
    async with world(nats_url, one=configs.context(era, host="h", documents=2)) as here:
        subscribed = here.computer.resources.subscriptions.subscribed
        await eventually(lambda: subscribed("one") == {"dpe://h/doc-0", "dpe://h/doc-1"}, timeout=30)
        for _ in range(3):
            await refs(here)
        assert await here.tell("one", "reads") == {"dpe://h/doc-0": 1, "dpe://h/doc-1": 1}
        await here.tell("one", "update", uri="dpe://h/doc-1", text='{"title": "Another"}')

        async def is_new() -> bool:
            found = await here.ask("get_finder")
            return any(each.get("title") == "Another" for each in found["documents"])

        await eventually(is_new, timeout=30)
        assert await here.tell("one", "reads") == {"dpe://h/doc-0": 1, "dpe://h/doc-1": 2}
        await here.tell("one", "put", document={"ref": "doc-2"})
        await eventually(lambda: len(subscribed("one")) == 3)
        assert await refs(here) == ["doc-0", "doc-2", "doc-1"], "the latest first, and who says no time last"
        await here.tell("one", "remove", uri="dpe://h/doc-0")
        await eventually(lambda: len(here.computer.resources.index.known("one")) == 2)
        assert await refs(here) == ["doc-2", "doc-1"]
        assert await here.tell("one", "reads") == {"dpe://h/doc-0": 1, "dpe://h/doc-1": 2, "dpe://h/doc-2": 1}


async def test_a_document_without_a_subscription_is_read_again(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "UNSUBSCRIBED_S", 0.1)
    refused = {"dpe://h/doc-0": "subscribe_refuse"}
    async with world(nats_url, one=configs.context("2025", host="h", documents=1, misbehave=refused)) as here:

        async def title() -> Any:
            return (await here.ask("get_finder"))["documents"][0].get("title")

        assert await title() == "Report doc-0"
        await here.tell("one", "update", uri="dpe://h/doc-0", text='{"title": "Another"}')

        async def is_new() -> bool:
            return bool(await title() == "Another")

        await eventually(is_new)


async def test_after_a_restart_of_a_server_its_documents_are_read_again(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2025", host="h", documents=2)) as here:
        await refs(here)
        starts = here.computer.fleet.supervisors["one"].starts
        await here.tell("one", "misbehave", uri="dpe://h/doc-1", how="die")
        await here.tell("one", "update", uri="dpe://h/doc-1")
        await eventually(lambda: here.told("update_finder"))
        await refs(here)
        await eventually(lambda: here.computer.fleet.supervisors["one"].starts > starts, timeout=30)
        await eventually(lambda: len(here.computer.resources.subscriptions.subscribed("one")) == 2, timeout=30)
        found = await here.ask("get_finder")
        assert [each["page_count"] for each in found["documents"]] == [2, 2]
        assert await here.tell("one", "reads") == {"dpe://h/doc-0": 1, "dpe://h/doc-1": 1}


@pytest.mark.rule(
    "finder.{computer.aggregate,flow.pull.organize,navigation.1.filters,versus.volume}",
    "events.flow.finder.7",
)
async def test_documents_are_filtered_ordered_and_paged(nats_url: str) -> None:
    a = [
        document("a1", file_type="pdf", keywords=["Finance"], last_modified="2026-01-01T00:00:00Z"),
        document("a2", file_type="xlsx", summary="ＦＩＮＡＮＣＥ", last_modified="2026-01-01T01:30:00+01:00"),
        document("a3", file_type="PDF", last_modified="yesterday"),
    ]
    b = [document(f"b{number}", file_type="pptx", last_modified=f"2026-02-0{number}") for number in range(1, 6)]
    servers = {
        "a": configs.context("2025", host="com.a", content=a),
        "b": configs.context("2026", host="com.b", content=b),
    }
    async with world(nats_url, {"read_s": 20.0}, **servers) as here:
        everything = ["a2", "a1", "a3", "b5", "b4", "b3", "b2", "b1"]
        assert await refs(here) == everything
        assert await refs(here, keywords=["finance"]) == ["a2", "a1"]
        assert await refs(here, keywords=["nothing", "OF B3"]) == ["b3"]
        assert await refs(here, keywords=[], file_type="pdf") == ["a1", "a3"]
        assert await refs(here, keywords=["finance"], file_type="pdf") == ["a1"]
        page = await here.ask("get_finder", offset=2, limit=3)
        assert [each["doc_ref"] for each in page["documents"]] == everything[2:5]
        assert page["total_count"] == 8
        assert await refs(here, offset=8) == []
        await here.call("b__reads", req_id="used")
        assert await refs(here, limit=2) == ["b5", "b4"], "the server used last comes first"


@pytest.mark.rule("answers.finder.kept", "answers.finder.as_listed")
async def test_a_catalog_above_the_cache_bound_counts_the_documents_shown_as_listed(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "CACHE_BYTES", 0)
    a = [document(f"a{number}", summary=f"word{number}", last_modified=f"2026-01-0{number}") for number in range(1, 6)]
    async with world(nats_url, a=configs.context("2026", host="com.a", content=a)) as here:
        found = await here.ask("get_finder", keywords=["word4", "word2"])
        newest = await here.ask("get_finder", limit=2)
        shown = [[each["doc_ref"] for each in each_found["documents"]] for each_found in (found, newest)]
        assert shown == [[], ["a1", "a2"]], "their lists have neither the summary nor the date"
        assert found["a2c_as_listed"] == newest["a2c_as_listed"] == 5


@pytest.mark.rule("finder.server.subscribe", "finder.uri.host.style")
async def test_only_servers_with_subscriptions_are_in_the_finder(nats_url: str) -> None:
    servers = {
        "told": configs.context("2026", host="told", documents=1),
        "silent": configs.context("2026", host="silent", documents=1, without=["subscribe"]),
        "old": configs.context("2025", host="old", documents=1, without=["subscribe"]),
        "none": configs.context("2025", without=["resources"]),
    }
    async with world(nats_url, **servers) as here:
        found = await here.ask("get_finder")
        assert [each["uri"] for each in found["documents"]] == ["dpe://told/doc-0"]
        assert await here.tell("silent", "reads") == {}


@pytest.mark.rule("finder.navigation.1.filters")
async def test_a_request_out_of_range_is_refused_by_its_field(nats_url: str) -> None:
    async with world(nats_url) as here:
        wrong: dict[str, list[Any]] = {
            "offset": [-1, 1.5, "0", True, None],
            "limit": [0, 101, -5, "20", 1.0, None],
            "keywords": ["word", [1], {"a": 1}, ["k"] * 65, ["x" * 1025]],
            "file_type": [1, ["pdf"], True],
        }
        for field, values in wrong.items():
            for value in values:
                refused = await here.ask("get_finder", **{field: value})
                assert refused.get("code") == 400, (field, value)
                assert refused["details"]["field"].split(".")[0] == field
        assert (await here.ask("get_finder", limit=100, offset=0, keywords=[], file_type=""))["total_count"] == 0


async def test_whole_numbers_of_any_size_in_metadata_are_shown_as_they_are(nats_url: str) -> None:
    large = {"n": 12345678901234567890123, "more": [-(2**63) - 1, 2**64 - 1, 1.5]}
    async with world(nats_url, one=configs.context("2026", host="h", documents=1)) as here:
        for text in (json.dumps({"large": large}), json.dumps({"half": "\ud800", "large": large})):
            await here.tell("one", "update", uri="dpe://h/doc-0", text=text)

            async def shown(of: str = text) -> list[Any]:
                found = await here.ask("get_finder")
                return [each["large"] for each in found["documents"] if each.keys() >= json.loads(of).keys()]

            assert await eventually(shown, timeout=30) == [large]


@pytest.mark.rule("answers.finder.unreadable")
@SELDOM
async def test_malformed_documents_do_not_affect_others(
    nats_url: str, era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ["refuse", "fail", "not_found", "vanish"]
    unusable = ["blob", "no_contents", "empty_text", "no_list", "big"]
    shown = ["mime", "other_uri", "bad_items", *unusable]
    names = [*refused, *shown]
    content = [document(name) for name in names]
    content += [{"uri": uri} for uri in ("dpe://h", "dpe://h/x/pages/0", "dpe:///x", "dpe://h/%zz", "window://h/w")]
    content += [document("fine")]
    async with world(
        nats_url,
        {"read_s": 20.0},
        one=configs.context(era, host="h", content=content),
        other=configs.context(era, host="o", documents=1),
    ) as here:
        for how in names:
            await here.tell("one", "misbehave", uri=f"dpe://h/{how}", how=how)
        assert sorted(await refs(here)) == sorted(["doc-0", "fine", *shown])
        titles = {each["doc_ref"]: each["title"] for each in (await here.ask("get_finder"))["documents"]}
        assert {how: titles[how] for how in unusable} == {how: f"Title of {how}" for how in unusable}
        for how in [*refused, *unusable]:
            assert any(f"dpe://h/{how}'" in record.getMessage() for record in caplog.records), how


@pytest.mark.rule("answers.finder.as_listed", "answers.finder.unreadable")
async def test_a_server_that_never_answers_loses_only_its_own_metadata(nats_url: str) -> None:
    async with world(
        nats_url,
        {"read_s": 0.5},
        slow=configs.context("2026", host="slow", documents=30),
        well=configs.context("2025", host="well", documents=3),
    ) as here:
        for number in range(30):
            await here.tell("slow", "misbehave", uri=f"dpe://slow/doc-{number}", how="never")
        watch = Stopwatch()
        found = await here.ask("get_finder", limit=100)
        assert watch.undisturbed < 10
        assert found["total_count"] == 33
        by_uri = {each["uri"]: each for each in found["documents"]}
        assert found["a2c_as_listed"] >= 30, "what is not known yet is said"
        assert by_uri["dpe://slow/doc-7"] == {"doc_ref": "doc-7", "uri": "dpe://slow/doc-7", "title": "Report doc-7"}

        async def is_read() -> bool:
            found = await here.ask("get_finder", limit=100)
            return all("page_count" in each for each in found["documents"] if "well" in each["uri"])

        await eventually(is_read, timeout=30)
