"""What a Computer tells of its MCP servers: states, reasons, processes, and a warning once for each cause."""

import os
import signal
import time

import psutil
import pytest

from smcp_computer.mcp.events import MOST_WARNINGS, ResourceUpdated, ServerEvents, ServerReady, State
from smcp_computer.mcp.process import usage_of
from smcp_computer.tools import History
from smcp_service.metrics import Metrics
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import pid_of, running
from smcp_testing.waiting import eventually


async def test_the_status_of_a_server_shows_its_process_and_its_restarts() -> None:
    async with running(
        ready=["box"], box=configs.stdio(fresh=True), web=configs.http("streamable", "http://127.0.0.1:1/mcp")
    ) as servers:
        box = servers["box"]
        first = box.status()
        assert (first.name, first.state, first.reason, first.restarts) == ("box", State.READY, "", 0)
        assert first.since <= time.time()
        assert first.pid == await pid_of(box)
        assert first.cpu_s is not None
        assert first.cpu_s > 0
        assert first.memory_bytes is not None
        assert first.memory_bytes > 1_000_000
        await eventually(lambda: servers["web"].state is State.BACKOFF)
        web = servers["web"].status()
        assert (web.reason, web.pid, web.cpu_s, web.memory_bytes) == ("cannot be reached", None, None, None)
        os.kill(first.pid, signal.SIGKILL)
        await eventually(lambda: box.status().restarts == 1)
        again = box.status()
        assert again.pid not in {None, first.pid}
        assert again.since > first.since
    assert (box.status().state, box.status().pid) == (State.STOPPED, None)


async def test_the_servers_are_counted_by_state_those_that_are_disabled_too(nats_url: str) -> None:
    metrics = Metrics()
    async with (
        world(nats_url, {"metrics": metrics}, box=configs.hostile(), off=configs.hostile(disabled=True)),
    ):
        counted = [line for line in metrics.scraped()[0].decode().splitlines() if "computer_mcp_servers{" in line]
        assert {line for line in counted if not line.endswith(" 0.0")} == {
            'smcp_computer_mcp_servers{state="ready"} 1.0',
            'smcp_computer_mcp_servers{state="disabled"} 1.0',
        }


async def test_what_processes_use_is_not_measured_for_agents(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int | None] = []

    def measure(pid: int | None) -> tuple[None, None]:
        measured.append(pid)
        return None, None

    async with world(nats_url, box=configs.stdio()) as here:
        monkeypatch.setattr("smcp_computer.mcp.supervisor.usage_of", measure)
        (box,) = (await here.ask("get_status"))["servers"]
        assert box["state"] == State.READY
        assert not measured
        here.computer.fleet.statuses()
        assert measured


def test_usage_counts_descendants_and_leaves_out_what_has_ended() -> None:
    child = psutil.Popen(["/bin/sh", "-c", "sleep 60 & echo; wait"], stdout=-1)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        (grandchild,) = psutil.Process(child.pid).children()
        (_, used), (_, alone) = usage_of(child.pid), usage_of(grandchild.pid)
        assert used is not None
        assert alone is not None
        assert used > alone
        grandchild.kill()
        child.kill()
    assert usage_of(child.pid) == (None, None)


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
