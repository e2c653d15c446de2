"""MCP servers with the same host, also in templates only, get a warning and keep working."""

import pytest

from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the same host" in record.getMessage()]


@pytest.mark.rule("desktop.uri.conflict.registered")
async def test_a_conflict_is_logged_once_and_blocks_nothing(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    servers = {
        "docs": configs.context("2025", host="h", documents=1),
        "more": configs.context("2026", host="com.other"),
    }
    async with world(nats_url, **servers) as here:
        assert (await here.ask("get_finder"))["documents"][0]["doc_ref"] == "doc-0"
        assert warnings(caplog) == []
        await here.tell("more", "put", uri="window://h/new")
        await eventually(lambda: bool(warnings(caplog)), timeout=30)
        await here.tell("more", "put", uri="window://h/newer")
        await eventually(lambda: "window://h/newer" in here.computer.resources.index.known("more"))
        assert (await here.ask("get_finder"))["documents"][0]["doc_ref"] == "doc-0", "nothing is blocked"
        (warning,) = warnings(caplog)
        assert "MCP server 'docs': uses the same host 'h' as 'more'" in warning
