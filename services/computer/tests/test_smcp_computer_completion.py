"""`client:completion/complete` of a native Computer: routed by the template, passed through with its context."""

from typing import Any, Literal

import pytest

from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent

Era = Literal["2025", "2026"]
METHOD = "completion/complete"


def asked(uri: str | None, argument: str, value: str = "", **chosen: str) -> dict[str, Any]:
    reference = {"type": "ref/resource"} | ({} if uri is None else {"uri": uri})
    params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": value}}
    return params | ({"context": {"arguments": chosen}} if chosen else {})


@pytest.mark.rule(
    "answers.resources.completion.meta",
    "finder.{server.templates,completion.doc_ref,completion.page_index,completion.element_id}",
    "finder.{completion.chain,completion.prefix,practice.completion}",
)
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_the_three_arguments_of_a_template_are_completed(nats_url: str, era: Era) -> None:
    docs = configs.context(era, host="com.docs", documents=12)
    async with world(nats_url, docs=docs, other=configs.context(era, host="com.other", documents=1)) as here:
        alice = ResourceAgent(here)
        pages, elements = (
            f"dpe://com.docs/{{doc_ref}}/{path}" for path in ("pages/{page_index}", "elements/{element_id}")
        )

        async def values(*question: str, **chosen: str) -> Any:
            completion = (await alice.result(METHOD, **asked(*question, **chosen)))["completion"]
            assert completion["total"] == len(completion["values"])
            return completion["values"]

        assert await values(pages, "doc_ref", "doc-1") == ["doc-1", "doc-10", "doc-11"]
        assert await values(pages, "page_index", doc_ref="doc-1") == ["0", "1"]
        assert await values(pages, "page_index") == [], "the context passes, and without it there is none"
        assert await values(elements, "element_id", doc_ref="doc-1", page_index="1") == ["tbl-001"]
        assert await values(elements, "element_id", "txt", doc_ref="doc-1") == ["txt-001"]
        answer = await alice.ask(METHOD, **asked(pages, "doc_ref"))
        assert (answer["serverId"], answer["payload"]["result"]["meta"]["later"]) == ("docs", True)
        assert "a2c_skipped_servers" not in answer["payload"]["result"]["meta"], "that is the Computer's to say"
        other = await alice.ask(METHOD, server="other", **asked(pages, "doc_ref"))
        assert (other["serverId"], other["payload"]["result"]["completion"]["values"]) == ("other", ["doc-0"])


@pytest.mark.rule("computer.resources.errors.not_supported", "finder.completion.optional", "finder.completion.without")
async def test_a_completion_that_is_not_possible_is_refused(nats_url: str) -> None:
    servers = {
        "able": configs.context("2025", host="able", documents=1),
        "unable": configs.context("2026", host="unable", documents=1, without=["completions"]),
        "none": configs.context("2025", without=["resources"]),
    }
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        error = await alice.error(METHOD, **asked("dpe://unable/{doc_ref}/pages/{page_index}", "doc_ref"))
        assert (error["code"], error["data"]["smcp_code"]) == (-32601, "SMCP_RESOURCE_NOT_SUPPORTED")
        assert await alice.flat(METHOD, **asked("dpe://elsewhere/{doc_ref}", "doc_ref")) == (
            404, "SMCP_RESOURCE_NOT_FOUND",
        )  # fmt: skip
        refused = await alice.flat(METHOD, server="none", **asked("dpe://able/{doc_ref}", "doc_ref"))
        assert refused == (400, "SMCP_RESOURCE_NOT_SUPPORTED")
        for params, field in [
            (asked(None, "doc_ref"), "payload.params.ref.uri"),
            ({"ref": {"type": "other"}, "argument": {"name": "a", "value": ""}}, "payload.params.ref.type"),
            ({"ref": {"type": "ref/resource", "uri": "x"}}, "payload.params.argument"),
            (
                asked("dpe://able/{doc_ref}", "doc_ref") | {"context": {"arguments": {"a": 1}}},
                "payload.params.context.arguments.a",
            ),
        ]:
            answer = await alice.ask(METHOD, **params)
            assert (answer.get("code"), answer.get("details", {}).get("field")) == (400, field)


@pytest.mark.rule("answers.resources.completion.next")
async def test_a_completion_falls_back_to_the_next_server_with_the_same_template(nats_url: str) -> None:
    servers = {
        "also": configs.context("2026", host="h", content=[{"document": {"ref": "a-2"}}]),
        "able": configs.context("2025", host="h", content=[{"document": {"ref": "a-1"}}, {"document": {"ref": "b-1"}}]),
        "a": configs.context("2025", host="h", content=[{"document": {"ref": "a-3"}}], without=["completions"]),
    }
    pages = "dpe://h/{doc_ref}/pages/{page_index}"
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        answer = await alice.ask(METHOD, **asked(pages, "doc_ref", "a"))
        assert (answer["serverId"], answer["payload"]["result"]["completion"]["values"]) == ("able", ["a-1"])
        await here.call("also__reads", req_id="used")
        answer = await alice.ask(METHOD, **asked(pages, "doc_ref", "a"))
        assert (answer["serverId"], answer["payload"]["result"]["completion"]["values"]) == ("also", ["a-2"])
