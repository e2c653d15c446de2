"""Each process tells Prometheus what it does; docs/metrics.md says what that is."""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import FlatError, member
from tests.e2e.worlds.world import LAB, Part, World

TABLE: Final = Path(__file__).parents[3] / "docs" / "metrics.md"
OBSERVE: Final = Path(__file__).parents[3] / "deploy" / "observe"
USED: Final = re.compile(r"\b(?:smcp|process)_\w+")
ROW: Final = re.compile(r"^\| `(smcp_\w+)` \| ([\w, ]+) \|", re.MULTILINE)
CALLS: Final = 3
KINDS: Final = ("gateway", "registry", "Computer", "MCP service")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""By name, and label and value."""


async def each_process_serves_the_documented_metrics(world: World) -> None:
    """All that stands in the table, and nothing else; a call is counted where it was."""
    host = world.computer(LAB, "alpha")
    async with member(world.url(), "agent", LAB, "counting") as agent:
        gateway, computer = world.gateway(0).part, host.part
        before, host_before = await scraped(gateway), await scraped(computer)
        for _ in range(CALLS):
            await agent.call("alpha", "echo", {"text": "counted"}, req_id="again")
        for _ in range(CALLS - 1):
            await agent.call("alpha", "echo", {"text": "counted"})
        with pytest.raises(FlatError):
            await agent.call("nobody", "echo", {"text": "not here"})
        after, host_after = await scraped(gateway), await scraped(computer)
        assert _calls(after, "ok") - _calls(before, "ok") == 2 * CALLS - 1
        assert _calls(after, "404") - _calls(before, "404") == 1
        assert _runs(host_after) - _runs(host_before) == CALLS
        assert _total(host_after, "smcp_computer_mcp_server_calls_total", outcome="ok") == CALLS + _total(
            host_before, "smcp_computer_mcp_server_calls_total", outcome="ok"
        )
        assert _total(host_after, "smcp_calls_repeated_total", found="kept") == CALLS - 1 + _total(
            host_before, "smcp_calls_repeated_total", found="kept"
        )
        assert after["smcp_gateway_members", (("role", "agent"),)] >= 1
        for registry in world.registries:
            await eventually(partial(_knows_an_agent, registry))
        told = {
            "gateway": await _names(gateway),
            "Computer": await _names(computer),
            "registry": set().union(*[await _names(each) for each in world.registries]),
        }
        samples = [after, host_after, *[await scraped(each) for each in world.registries]]
    for kind, names in told.items():
        expected = in_table(kind)
        assert names == expected, f"{kind}: {sorted(names ^ expected)}"
    shown = {name for each in samples for name, _ in each}
    shown |= in_table("MCP service")  # `test_e2e_mcp_service` compares the table with what one exports
    for file in ("alerts.yaml", "dashboards/operators.json", "dashboards/office.json"):
        used = set(USED.findall((OBSERVE / file).read_text(encoding="utf-8")))
        assert used <= shown, f"{file} names what nothing exports: {sorted(used - shown)}"
        assert used, file


async def one_process_serves_the_metrics_of_its_gateway(world: World) -> None:
    """`smcp up`; its registry and Computer have health ports of their own."""
    assert await _names(world.gateway(0).part) == in_table("gateway")


async def scraped(part: Part) -> Samples:
    """What a process tells now."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(await _text(part))
        for sample in family.samples
    }


async def _text(part: Part) -> str:
    url = part.stats_url.replace("/statz", "/metrics")
    seconds = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=seconds) as http, http.get(url) as answer:
        assert answer.status == 200, f"{url}: {answer.status}"
        return await answer.text()


async def _names(part: Part) -> set[str]:
    return shown_in(await _text(part))


def shown_in(text: str) -> set[str]:
    """The names of our metrics in an answer of `/metrics`, as the table has them."""
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
        if family.name.startswith("smcp_")
    }


def in_table(kind: str) -> set[str]:
    """The metrics that the table names for processes of this kind."""
    rows: Iterable[tuple[str, str]] = ROW.findall(TABLE.read_text(encoding="utf-8"))
    found = {name: of.split(", ") for name, of in rows}
    assert all(set(of) <= {*KINDS, "all"} for of in found.values()), found
    return {name for name, of in found.items() if kind in of or of == ["all"]}


def _calls(samples: Samples, outcome: str) -> float:
    labels = (("event", "client:tool_call"), ("outcome", outcome))
    return samples.get(("smcp_gateway_call_duration_seconds_count", labels), 0)


def _total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for (each, of), value in samples.items() if each == name and labels.items() <= dict(of).items())


def _runs(samples: Samples) -> float:
    return samples.get(("smcp_computer_call_duration_seconds_count", (("outcome", "ok"),)), 0)


async def _knows_an_agent(registry: Part) -> bool:
    samples = await scraped(registry)
    members = samples["smcp_registry_members", (("role", "agent"),)] >= 1
    return members and samples["smcp_registry_views_synced", ()] == 1 and samples["smcp_bus_connected", ()] == 1
