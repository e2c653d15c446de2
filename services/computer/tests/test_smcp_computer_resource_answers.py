"""Errors, oversized, missing and malformed answers of MCP servers to resource requests."""

from typing import Any

import pytest

from smcp_computer.mcp.errors import (
    RESOURCE_NOT_FOUND,
    AnswerTooLarge,
    BadAnswer,
    RequestRefused,
    ServerDied,
    ServerTimedOut,
)
from smcp_computer.mcp.events import (
    ResourcesChanged,
)
from smcp_testing.mcp_servers import configs
from smcp_testing.mcp_servers.context_tools import BIG
from smcp_testing.resource_servers import ERAS, OTHER, WINDOW, running


@ERAS
async def test_read_errors_quote_the_server_only_about_the_request(era: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "smcp_computer")
    async with running(desk=configs.context(era, windows=1)) as servers:
        await servers.tell("misbehave", uri=WINDOW, how="refuse")
        with pytest.raises(RequestRefused, match="not for you") as refused:
            await servers.resources().read(WINDOW)
        assert (refused.value.code, refused.value.said, refused.value.data) == (-32602, "not for you", {"uri": WINDOW})
        await servers.tell("misbehave", uri=WINDOW, how="fail")
        with pytest.raises(RequestRefused) as failed:
            await servers.resources().read(WINDOW)
        assert "secret" not in str(failed.value) + failed.value.said
        assert failed.value.data is None
        (logged,) = [each.getMessage() for each in caplog.records if each.name == "smcp_computer.mcp.session"]
        what = {"2025": "secret of the server", "2026": "Internal server error"}[era]
        assert logged == f"MCP server 'desk' failed at resources/read: MCP error {failed.value.code}: {what!r}"
        with pytest.raises(RequestRefused) as missing:
            await servers.resources().read("window://no/such")
        assert missing.value.code == (RESOURCE_NOT_FOUND if era == "2025" else -32602)


async def test_a_read_that_is_never_answered_ends_in_time_and_the_next_is_answered() -> None:
    async with running(desk=configs.context("2025", windows=2)) as servers:
        await servers.tell("misbehave", uri=WINDOW, how="never")
        with pytest.raises(ServerTimedOut, match=r"'desk' did not answer within 0\.3 s"):
            await servers.resources().read(WINDOW, timeout=0.3)
        assert (await servers.resources().read(OTHER))["contents"]


async def test_a_server_that_ends_during_a_read_is_reported_as_dead() -> None:
    async with running(desk=configs.context("2026", windows=1)) as servers:
        await servers.tell("misbehave", uri=WINDOW, how="die")
        with pytest.raises(ServerDied):
            await servers.resources().read(WINDOW)


async def test_malformed_contents_are_a_bad_answer() -> None:
    async with running(desk=configs.context("2025", windows=1)) as servers:
        await servers.tell("misbehave", uri=WINDOW, how="no_list")
        with pytest.raises(BadAnswer):
            await servers.resources().read(WINDOW)


async def test_a_result_of_fifty_megabytes_is_dropped_and_the_server_keeps_running() -> None:
    async with running(desk=configs.context("2025", windows=1)) as servers:
        await servers.tell("misbehave", uri=WINDOW, how="big")
        with pytest.raises(AnswerTooLarge) as refused:
            await servers.resources().read(WINDOW, timeout=60)
        assert refused.value.details["size"] > BIG
        await servers.tell("misbehave", uri=WINDOW, how="")
        assert (await servers.resources().read(WINDOW))["contents"]


async def test_invalid_items_are_left_out_of_a_list_and_an_endless_list_ends() -> None:
    async with running(desk=configs.context("2026", windows=2)) as servers:
        await servers.tell("misbehave", uri="list", how="bad_items")
        listed = await servers.resources().list_all("resources")
        assert [item["uri"] for item in listed.items] == [WINDOW, OTHER]
        assert listed.problems == ("an item of its resources has no uri; it is left out",)
        await servers.tell("misbehave", uri="list", how="endless")
        listed = await servers.resources().list_all("resources")
        assert len(listed.items) == 2
        assert any("has no end" in problem for problem in listed.problems)


@pytest.mark.rule("computer.resources.computer.failure")
async def test_a_list_that_never_comes_does_not_delay_other_servers() -> None:
    async with running(desk=configs.context("2025", windows=1), fine=configs.context("2025", windows=1)) as servers:
        await servers.tell("misbehave", uri="list", how="never")
        await servers.tell("tell_list")
        await servers.heard_of(ResourcesChanged("desk"))
        with pytest.raises(ServerTimedOut):
            await servers.index.list("desk", timeout=0.3)
        assert list(await servers.index.list("fine")) == [WINDOW]
