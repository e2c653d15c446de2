"""Warnings about MCP servers are logged once for each cause; and the order of the servers that were called."""

import pytest

from smcp_computer.mcp.events import MOST_WARNINGS, ResourceUpdated, ServerEvents, ServerReady
from smcp_computer.tools import History


def test_a_warning_is_logged_once_in_each_life_of_a_server(caplog: pytest.LogCaptureFixture) -> None:
    events = ServerEvents()
    for _ in range(3):
        events.warn("a", "wrong")
        events.warn("b", "wrong")
    assert caplog.messages == ["MCP server 'a': wrong", "MCP server 'b': wrong"]
    events.tell(ServerReady("a"))
    events.warn("a", "wrong")
    events.warn("b", "wrong")
    assert caplog.messages[2:] == ["MCP server 'a': wrong"]


def test_warnings_about_one_server_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    events = ServerEvents()
    for number in range(2 * MOST_WARNINGS):
        events.warn("a", f"wrong {number}")
    events.warn("b", "wrong")
    assert caplog.messages == [
        *(f"MCP server 'a': wrong {number}" for number in range(MOST_WARNINGS)),
        "MCP server 'a': further warnings are not logged",
        "MCP server 'b': wrong",
    ]


def test_control_characters_of_a_server_do_not_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ServerEvents().warn("a", "window://x\n\x1b[31mERROR\x85\u2028all is lost 文")
    assert caplog.messages == ["MCP server 'a': window://x ERROR  all is lost 文"]


def test_an_update_with_an_invalid_uri_is_not_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    events, told = ServerEvents(), list[object]()
    events.listen(told.append)
    for uri in ("", "x" * 100_000, "window://\ud800"):
        events.tell(ResourceUpdated("a", uri))
    assert told == []
    assert len(caplog.messages) == 1


@pytest.mark.rule("desktop.organize.2.record")
def test_the_history_has_each_server_once_with_the_last_called_at_the_end() -> None:
    history = History()
    for server in ("a", "b", "a", "c", "b"):
        history.called(server)
    assert history.servers == ("a", "c", "b")
