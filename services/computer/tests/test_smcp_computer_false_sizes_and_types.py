"""MCP servers whose lists have false sizes or MIME types, as seen by Agents on Socket.IO."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import pytest

from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import Client, connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

Era = Literal["2025", "2026"]
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
OFFICE: Final = "lab"
PC: Final = "pc"
NAMES: Final = {"roomId": OFFICE, "computerId": PC, "agent": "alice"}
LARGE: Final = "é" * 5_000
"""10 KB of text."""
BLOB: Final = base64.b64encode(bytes(range(256)) * 40).decode()
SAID: Final = {"size": 10, "mimeType": "text/plain"}
"""What the lists say of all of these."""
METADATA: Final = {"title": "A title", "file_type": "pdf", "summary": "s" * 10_000, "last_modified": "2026-02-01"}


def lies() -> list[dict[str, Any]]:
    """What such a server holds: resources, windows and documents."""
    contents: dict[str, dict[str, Any]] = {
        "note://large": {"mimeType": "text/plain", "text": LARGE},
        "note://blob": {"mimeType": "image/png", "blob": BLOB},
        "note://called-text": {"mimeType": "text/plain", "blob": BLOB},
        "note://called-image": {"mimeType": "image/png", "text": "no image"},
        "window://h/large": {"mimeType": "text/plain", "text": LARGE},
        "window://h/blob": {"mimeType": "image/png", "blob": BLOB},
        "window://h/called-image": {"mimeType": "image/png", "text": "no image"},
        "dpe://h/large": {"mimeType": "text/plain", "text": json.dumps(METADATA)},
        "dpe://h/blob": {"mimeType": "application/json", "blob": BLOB},
    }
    return [{"uri": uri, "resource": SAID, "contents": [{"uri": uri, **said}]} for uri, said in contents.items()]


@asynccontextmanager
async def scene(nats_url: str, era: Era) -> AsyncIterator[Client]:
    """An Agent at a gateway, and a Computer with such a server and a truthful one."""
    servers = {
        "false": configs.context(era, host="h", content=lies()),
        "true": configs.context(era, host="t", windows=1, documents=1),
    }
    async with (
        gateway_world(nats_url) as there,
        native_computer(there, OFFICE, PC, servers) as computer,
        connected(there.gateways[0].url) as agent,
    ):
        assert await agent.join("agent", "alice", OFFICE) == [True, None]
        await eventually(lambda: len(computer.resources.index.known("false")) == len(lies()), timeout=30)
        yield agent


async def mcp(agent: Client, method: str, **params: Any) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await agent.call(f"client:{method}", {**NAMES, "payload": payload}, timeout=30)
    result: dict[str, Any] = answer["payload"]["result"]
    return result


async def ask(agent: Client, event: str, **fields: Any) -> dict[str, Any]:
    answer = await agent.call(event, {"agent": "alice", "req_id": "r", "computer": PC, **fields}, timeout=30)
    assert "code" not in answer, answer
    return answer  # type: ignore[no-any-return]


@pytest.mark.rule("answers.resources.read.false_descriptions")
@ERAS
async def test_false_sizes_and_types_in_a_list_do_not_change_contents(nats_url: str, era: Era) -> None:
    async with scene(nats_url, era) as agent:
        listed = {each["uri"]: each for each in (await mcp(agent, "resources/list"))["resources"]}
        for held in lies():
            assert {name: listed[held["uri"]][name] for name in SAID} == SAID, "the list is the server's, too"
            assert (await mcp(agent, "resources/read", uri=held["uri"]))["contents"] == held["contents"]


@ERAS
async def test_a_window_with_text_is_shown_whatever_its_listed_type(nats_url: str, era: Era) -> None:
    async with scene(nats_url, era) as agent:
        desktops = (await ask(agent, "client:get_desktop"))["desktops"]
        assert sorted(desktops) == [
            "window://h/called-image\n\nno image",
            f"window://h/large\n\n{LARGE}",
            "window://t/0\n\ntext of window://t/0",
        ]


@pytest.mark.rule("answers.finder.false_descriptions")
@ERAS
async def test_false_sizes_and_types_in_a_list_do_not_change_the_metadata_of_a_document(
    nats_url: str, era: Era
) -> None:
    async with scene(nats_url, era) as agent:
        found = await ask(agent, "client:get_finder")
        by_ref = {each["doc_ref"]: each for each in found["documents"]}
        assert by_ref["large"] == {"doc_ref": "large", "uri": "dpe://h/large", **METADATA}
        assert by_ref["blob"] == {"doc_ref": "blob", "uri": "dpe://h/blob", "title": "blob"}, "as it is listed"
        assert by_ref["doc-0"]["title"] == "Report doc-0"
        assert (found["total_count"], found["a2c_as_listed"]) == (3, 1)
