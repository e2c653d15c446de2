"""`smcp-agent desktop | finder | resources | read | watch`; as processes where that makes a difference."""

import json
import os
from typing import Any

import pytest
from typer.testing import CliRunner

from smcp_agent.cli.main import app
from smcp_testing.agent_command import at_a_terminal, run
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.showing_computer import BYTES, PICTURE, computer_at

REPORT = "dpe://com.example.docs/rpt-2026"
JsonObject = dict[str, Any]


async def test_desktop_shows_each_window_with_its_text() -> None:
    async with fake_gateway() as gateway:
        red = computer_at(gateway)
        assert await run(gateway, "desktop", "red") == (0, b"window://a/1\none [red]\n\ntwo\n\nwindow://b\n", "")
        assert await run(gateway, "desktop", "red", "--size", "0") == (0, b"", "No window to show.\n")
        none = "No such window: without --window all are shown.\n"
        assert await run(gateway, "desktop", "red", "--window", "window://none") == (0, b"", none)
        code, out, _ = await run(gateway, "desktop", "red", "--size", "1", "--json")
        assert (code, json.loads(out)) == (0, {"computer": "red", "desktops": red.desktops[:1]})


async def test_desktop_says_how_old_a_window_is_and_how_many_are_missing() -> None:
    async with fake_gateway() as gateway:
        red = computer_at(gateway)
        answer = gateway.answers["client:get_desktop"]

        async def slow(data: JsonObject) -> Any:
            return {**await answer(data), "a2c_ages": [0, 12.3], "a2c_missing": 1}

        gateway.answers["client:get_desktop"] = slow
        _, _, hints = await run(gateway, "desktop", "red")
        assert hints == "Read 12 s ago: its MCP server is slow.\nWindows that could not be read: 1.\n"
        _, out, _ = await run(gateway, "desktop", "red", "--json")
        shown = {"computer": "red", "desktops": red.desktops, "a2c_ages": [0, 12.3], "a2c_missing": 1}
        assert json.loads(out) == shown


@pytest.mark.rule("finder.navigation.step_1.filters")
async def test_finder_shows_documents_and_says_how_many_there_are() -> None:
    async with fake_gateway() as gateway:
        red = computer_at(gateway)
        _, shown, err = await run(gateway, "finder", "red", "--limit", "1")
        assert all(each in shown.decode() for each in (REPORT, "2026 年度报告", "xlsx", "12"))
        assert err == "1 of 2, from 0 on: --offset and --limit choose others.\n"
        none = ("finder", "red", "--keyword", "none")
        assert await run(gateway, *none) == (0, b"", "No documents.\n")
        red.as_listed = 7
        unknown = "Documents whose metadata is not known now, and which may be missing: 7.\n"
        assert await run(gateway, *none) == (0, b"", f"No documents.\n{unknown}")
        arguments = ("--keyword", "合同", "--keyword", "x", "--type", "pdf", "--offset", "0", "--json")
        code, printed, err = await run(gateway, "finder", "red", *arguments)
        assert (code, err) == (0, "")
        found = json.loads(printed)
        assert (found["computer"], found["total_count"], found["a2c_as_listed"]) == ("red", 1, 7)
        assert [each["doc_ref"] for each in found["documents"]] == ["contract-a1"]
        asked = red.seen("client:get_finder")[-1]
        assert (asked["keywords"], asked["file_type"], asked["limit"]) == (["合同", "x"], "pdf", 20)


async def test_resources_shows_all_of_them() -> None:
    async with fake_gateway() as gateway:
        red = computer_at(gateway)
        red.page_size = 3
        shown = (await run(gateway, "resources", "red"))[1].decode()
        assert all(each in shown for each in (REPORT, PICTURE, "image/png", "Bells"))
        red.shelf.put("file:///said", {"serverId": "a server"})
        shown = (await run(gateway, "resources", "red"))[1].decode()
        assert all(each in shown for each in (REPORT, "Server", "a server"))
        code, out, _ = await run(gateway, "resources", "red", "--server", "files", "--json")
        assert (code, json.loads(out)) == (0, {"computer": "red", "resources": red.shelf.listed()})
        assert red.seen("client:resources/list")[-1]["serverId"] == "files"


async def test_read_prints_text_to_the_byte_for_programs_and_without_control_characters_at_a_terminal() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        code, out, err = await run(gateway, "read", "red", "file:///t")
        assert (code, out, err) == (0, "ding\x07\r\n[b]深".encode(), "")
        code, out, err = await at_a_terminal(gateway, "read", "red", "file:///t")
        assert (code, out.decode(), err) == (0, "ding\ufffd\r\n[b]深\r\n", "")  # the terminal's own line ends
        uri = f"{REPORT}/pages/0"
        _, out, _ = await run(gateway, "read", "red", uri, "--server", "files", "--json")
        said = json.loads(out)
        assert (said["computer"], said["uri"]) == ("red", uri)
        assert json.loads(said["contents"][0]["text"])["title"] == "概览"


async def test_binary_contents_go_into_a_pipe_and_never_to_a_terminal() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        code, out, err = await at_a_terminal(gateway, "read", "red", PICTURE)
        assert (code, out) == (1, b"")
        assert f"{len(BYTES)} bytes" in err
        assert "> FILE" in err
        code, out, err = await run(gateway, "read", "red", PICTURE)
        assert (code, out, err) == (0, BYTES, "")


async def test_a_hint_says_that_bytes_beside_a_text_are_left_out() -> None:
    mixed, said = "file:///mixed", "2 of its 3 contents are binary, and left out: --json prints all.\n"
    async with fake_gateway() as gateway:
        red = computer_at(gateway)
        bytes_ = {"uri": mixed, "blob": "AAEC"}
        red.shelf.put(mixed, {}, [bytes_, {"uri": mixed, "text": "words"}, bytes_])
        assert await run(gateway, "read", "red", mixed) == (0, b"words", said)
        _, out, err = await run(gateway, "read", "red", mixed, "--json")
        assert (json.loads(out)["contents"], err) == (red.shelf.read(mixed), "")


async def test_a_refusal_of_an_mcp_server_ends_with_1_and_its_words() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        code, out, err = await run(gateway, "--json", "read", "red", "file:///gone")
        assert (code, err) == (1, "error 404: Resource not found\n")
        assert json.loads(out)["details"]["smcp_code"] == "SMCP_RESOURCE_NOT_FOUND"


async def test_a_request_that_cannot_be_sent_ends_with_2_and_one_line() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        code, out, err = await run(gateway, "read", "red", "")
        assert (code, out) == (2, b"")
        assert err.startswith("error 400: payload.params.uri: ")
        assert err.count("\n") == 1
        code, _, err = await run(gateway, "finder", "red", "--keyword", os.fsdecode(b"\xff"))
        assert (code, err) == (
            2,
            "error 400: keywords.0: contains an unpaired surrogate\n",
        )


async def test_the_error_for_a_timed_out_read_does_not_mention_tools() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)

        async def timed_out(data: JsonObject) -> Any:
            return {"code": 408, "message": "MCP server 'a' did not answer within 30 s", "details": {}}

        gateway.answers["client:resources/read"] = gateway.answers["client:tool_call"] = timed_out
        said = "error 408: MCP server 'a' did not answer within 30 s"
        assert await run(gateway, "read", "red", "file:///t") == (1, b"", f"{said}\n")
        code, out, err = await run(gateway, "call", "red", "t")
        assert (code, out, err.splitlines()[0]) == (1, b"", f"{said} (the tool may have run nevertheless)")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["desktop"], "COMPUTER"),
        (["desktop", "red", "--size", "some"], "--size"),
        (["finder", "red", "--limit", "101"], "--limit"),
        (["finder", "red", "--offset", "-1"], "--offset"),
        (["read", "red"], "URI"),
        (["watch", "--for", "nan"], "--for"),
        (["watch", "--for", "-1"], "--for"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_option(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["--office", "office", "--url", "http://127.0.0.1:1", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
