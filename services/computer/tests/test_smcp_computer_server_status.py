"""What a Computer tells of its MCP servers: states, reasons, processes."""

import os
import signal
import time

import psutil
import pytest

from smcp_computer.mcp.events import State
from smcp_computer.mcp.process import usage_of
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
