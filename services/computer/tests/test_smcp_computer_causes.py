"""What is said of MCP servers once for each cause; and the order of the servers that were called."""

import logging

import pytest

from smcp_computer.mcp.events import ServerEvents, ServerReady
from smcp_computer.resources.index import History
from smcp_computer.resources.warn_once import WarnOnce

LOG = logging.getLogger("test")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_cause_is_said_once_for_each_server_and_again_in_its_next_life(caplog: pytest.LogCaptureFixture) -> None:
    events = ServerEvents()
    causes = WarnOnce(LOG, events)
    for _ in range(3):
        causes.warn("a", "wrong")
        causes.warn("b", "wrong")
    assert said(caplog) == ["MCP server 'a': wrong", "MCP server 'b': wrong"]
    events.tell(ServerReady("a"))
    causes.warn("a", "wrong")
    causes.warn("b", "wrong")
    assert said(caplog)[2:] == ["MCP server 'a': wrong"]


def test_one_server_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    causes = WarnOnce(LOG, ServerEvents(), most=3)
    for number in range(100):
        causes.warn("a", f"wrong {number}")
    causes.warn("b", "wrong")
    assert said(caplog) == [
        *(f"MCP server 'a': wrong {number}" for number in range(3)),
        "MCP server 'a': more is wrong with its resources than is said here",
        "MCP server 'b': wrong",
    ]


def test_text_of_a_server_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    WarnOnce(LOG, ServerEvents()).warn("a", "window://x\n\x1b[31mERROR\x85\u2028all is lost 文")
    assert said(caplog) == ["MCP server 'a': window://x [31mERROR all is lost 文"]


@pytest.mark.rule("desktop.organize.2.record")
def test_the_history_has_each_server_once_the_one_called_last_at_its_end() -> None:
    history = History()
    for server in ("a", "b", "a", "c", "b"):
        history.called(server)
    assert history.servers == ("a", "c", "b")
