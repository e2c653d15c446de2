"""Who did what, as the installed commands record it: once, whatever fails, and as far as NATS takes it."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import pytest
from nats.js import JetStreamContext, api

from smcp_agent import SmcpAgent
from smcp_agent.errors import SmcpError
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import BareMember, FlatError, Refused, member
from tests.e2e.actors.operator_commands import Record, operator, records, run_smcp, smcp
from tests.e2e.scenarios.metrics import scraped
from tests.e2e.worlds.layout import command
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.standalone import open_standalone
from tests.e2e.worlds.world import ELSEWHERE, LAB, Part, World

pytestmark = pytest.mark.alone

ON = {"SMCP_AUDIT": "on"}
CALLS = 1000
"""At least; they go on until the faults are over."""
AT_A_TIME = 5
"""Of each office."""


@pytest.mark.timeout(400)
async def test_each_call_and_each_refusal_has_one_record_whatever_fails(tmp_path: Path) -> None:
    async with open_processes(tmp_path, lease_s=4, environment=ON) as world:
        with world.telling():
            ran, refused, unknown = await _calls_under_faults(world)
            wanted = {**dict.fromkeys(ran, "call"), **dict.fromkeys(refused, "refusal")}

            async def wrong_ones() -> dict[str, list[Record]]:
                found: dict[str, list[Record]] = {each: [] for each in wanted}
                for record in await records(world):
                    if record["kind"] in ("call", "refusal") and record.get("tool") in ("append", "echo"):
                        found.setdefault(record["req_id"], []).append(record)
                return {each: found[each] for each, kind in wanted.items() if not _once(found[each], kind)}

            async def complete() -> bool:
                wrong = await wrong_ones()
                assert not wrong, f"{len(wrong)} of {len(wanted)}, and {len(unknown)} had no answer: {wrong}"
                return True

            # a call without an answer has its record when its time is up
            await eventually(complete, timeout=60)
            code, said, errors = await smcp(world, "audit", "verify")
            assert code == 0, errors
            assert "none is missing or changed" in said


def _once(found: list[Record], kind: str) -> bool:
    """Whether these records of one `req_id` are one of that kind for each process that decided.

    A call runs once. Where a gateway is killed before its refusal is heard, the next one refuses the repeat, too.
    """
    decided = {record["writer"] for record in found}
    return {record["kind"] for record in found} == {kind} and len(found) == (1 if kind == "call" else len(decided))


async def _calls_under_faults(world: World) -> tuple[set[str], set[str], set[str]]:
    """What ran, what was refused, and what had no answer in its time."""
    ran: set[str] = set()
    refused: set[str] = set()
    unknown: set[str] = set()
    urls = [world.url(0), world.url(1)]
    async with (
        SmcpAgent(urls, office=LAB, name="caller") as lab,
        SmcpAgent(urls[::-1], office=ELSEWHERE, name="caller") as elsewhere,
    ):

        async def call(agent: SmcpAgent, number: int) -> None:
            req_id = uuid4().hex
            try:
                if number % 10 == 0:
                    await agent.call_tool("nobody", "echo", {"text": ""}, timeout=20, req_id=req_id)
                else:
                    result = await agent.call_tool("alpha", "append", {"mark": req_id}, timeout=20, req_id=req_id)
                    assert result.text == req_id
                    ran.add(req_id)
            except SmcpError as error:
                (refused if number % 10 == 0 and int(error.code) == 404 else unknown).add(req_id)

        numbers, faults_are_over = itertools.count(), asyncio.Event()

        async def one_after_the_other(agent: SmcpAgent) -> None:
            while (number := next(numbers)) < CALLS or not faults_are_over.is_set():
                await call(agent, number)

        def answered() -> int:
            return len(ran) + len(refused) + len(unknown)

        async def all_taken() -> bool:
            waiting = [(await scraped(gateway.part))["smcp_audit_waiting", ()] for gateway in world.gateways]
            return not any(waiting)

        async def faults() -> None:
            for part in (world.gateway(0).part, world.nats, world.registries[0], world.gateway(1).part):

                def more(enough: int = answered() + 50) -> bool:
                    return answered() >= enough

                await eventually(more, timeout=60)
                # What NATS has not taken yet after its own fault is lost with a gateway that is killed.
                await eventually(all_taken, timeout=60)
                await part.kill()
                await part.start()
            faults_are_over.set()

        await asyncio.gather(faults(), *(one_after_the_other(agent) for agent in (lab, elsewhere) * AT_A_TIME))
    logs = [host.ran for host in world.computers if host.name == "alpha" and host.ran.exists()]
    marks = Counter(mark for log in logs for mark in log.read_text(encoding="utf-8").split())
    assert max(marks.values()) == 1, "a call ran twice"
    assert ran <= marks.keys()
    return set(marks), refused, unknown


async def test_a_full_stream_stops_nothing_with_on_and_everything_with_required(tmp_path: Path) -> None:
    required = {"gateway-2": {"SMCP_AUDIT": "required"}}
    async with open_processes(tmp_path, environment=ON, of_their_own=required) as world:
        ran = world.computer(LAB, "alpha").ran
        async with (
            member(world.url(0), "agent", ELSEWHERE, "anna") as on,
            member(world.url(1), "agent", LAB, "bea") as strict,
            _stream(world) as js,
        ):
            await strict.call("alpha", "append", {"mark": "before"})
            await _fill(js)
            for _ in range(5):
                await on.call("alpha", "echo", {"text": "goes on"})
            await eventually(lambda: _failures(world.gateway(0).part))
            with pytest.raises(FlatError) as first:
                await strict.call("alpha", "append", {"mark": "ran"}, req_id="a" * 32)
            with pytest.raises(FlatError) as second:
                await strict.call("alpha", "append", {"mark": "refused"}, req_id="b" * 32)
            assert (first.value.code, first.value.details["may_have_run"]) == (503, True)
            assert (second.value.code, second.value.details["may_have_run"]) == (503, False)
            assert "SMCP_AUDIT=required" in str(second.value)
            assert "refused" not in ran.read_text(encoding="utf-8").split()
            await _empty(js)
            await eventually(lambda: _works(strict.call("alpha", "append", {"mark": "again"})), timeout=20)
        found = await records(world, "--kind", "call")
        assert [record["req_id"] for record in found].count("a" * 32) == 1
        assert [record["outcome"] for record in await records(world, "--req-id", "b" * 32)] == ["503"]
        assert (await smcp(world, "audit", "verify"))[0] == 0


async def test_an_operator_finds_who_called_what_beside_smcp_up_and_a_removed_record_shows(tmp_path: Path) -> None:
    asked = {"SMCP_CONFIRM": "ask", "SMCP_CONFIRM_COMMAND": "true"}
    async with open_standalone(tmp_path, environment={"XDG_STATE_HOME": str(tmp_path), **asked}) as world:
        nasty = "=cmd()\n\x1b[31m" + "x" * 10_000
        async with member(world.url(), "agent", LAB, "anna") as agent:
            await agent.call("alpha", "echo", {"text": "a secret"}, req_id="not hex")
            with pytest.raises(FlatError):
                await agent.call(nasty, nasty, {}, req_id=nasty)
        beside = {"XDG_STATE_HOME": str(tmp_path)}

        async def approvals() -> list[Record]:
            _, output, _ = await run_smcp("audit", "list", "--json", "--kind", "approval", **beside)
            return [json.loads(line) for line in output.splitlines()]

        [approval] = await eventually(approvals)
        assert (approval["req_id"], approval["tool"], approval["outcome"]) == ("not hex", "echo", "yes")
        code, output, errors = await run_smcp("audit", "list", "--json", "--office", LAB, **beside)
        assert code == 0, errors
        assert "a secret" not in output
        found = [json.loads(line) for line in output.splitlines()]
        [call] = [record for record in found if record["kind"] == "call"]
        assert (call["name"], call["computer"], call["tool"], call["outcome"]) == ("anna", "alpha", "echo", "ok")
        assert (call["req_id"], len(call["args_sha256"])) == ("not hex", 64)
        [refusal] = [record for record in found if record["kind"] == "refusal"]
        assert (refusal["outcome"], refusal["args_sha256"]) == ("400", sha256(b"{}").hexdigest())
        assert all(len(str(refusal[name])) <= 256 and str(refusal[name]).isprintable() for name in ("tool", "req_id"))
        assert Counter(record["kind"] for record in found if record["name"] == "anna")["join"] == 1
        _, table, _ = await run_smcp("audit", "list", "--csv", **beside)
        assert "'=cmd()" in table
        assert not any(line.startswith("=") or ",=" in line for line in table.splitlines())
        assert (await run_smcp("audit", "verify", **beside))[0] == 0


async def test_an_operator_watches_an_office_without_a_seat_while_its_agent_works(tmp_path: Path) -> None:
    async with open_processes(tmp_path, gateways=1, registries=1, environment=ON) as world:
        watching = (command("smcp"), "watch", LAB, "--json", "--count", "4")
        async with service_process(*watching, env=operator(world)) as watch:
            await watch.logged(f"Watching the office {LAB!r}; ctrl-C ends it.")
            async with member(world.url(), "agent", LAB, "anna") as agent:
                second = BareMember("agent", LAB, "bea")
                await second.connect(world.url())
                with pytest.raises(Refused, match="the office already has an Agent: 'anna', since "):
                    await second.join()
                await second.close()
                for arguments in (["room", LAB], ["offices"]):
                    code, output, errors = await smcp(world, *arguments, "--json")
                    assert (code, errors) == (0, "")
                    assert "anna" in output
                assert not (await agent.call("alpha", "echo", {"text": "a secret"})).get("isError")
            assert await watch.exit_code(timeout=60) == 0
        events = [json.loads(line) for line in watch.output]
    assert [tuple(each[name] for name in ("kind", "name", "computer", "tool", "outcome")) for each in events] == [
        ("join", "anna", None, None, "ok"),
        ("refusal", "bea", None, None, "403"),
        ("call", "anna", "alpha", "echo", "ok"),
        ("leave", "anna", None, None, "disconnected"),
    ]
    assert events[2]["ms"] > 0
    assert "a secret" not in str(events)


async def test_the_level_of_the_log_changes_while_a_process_runs(tmp_path: Path) -> None:
    async with open_processes(tmp_path, gateways=1, registries=1) as world:
        gateway = world.gateway(0).part

        def lines(event: str) -> list[Record]:
            return [line for line in _log(gateway) if line.get("event") == event]

        async with member(world.url(), "agent", LAB, "anna") as agent:
            await agent.call("alpha", "echo", {"text": "a secret"}, req_id="a" * 32)
            code, output, errors = await smcp(world, "log-level", "debug", "--credential", "gateway-1")
            assert code == 0, errors
            assert [line.split()[:3] for line in output.splitlines()] == [["debug", "smcp-gateway", "gateway-1"]]
            await agent.call("alpha", "echo", {"text": "a secret"}, req_id="b" * 32)
            os.kill(gateway.pid, signal.SIGUSR1)
            await eventually(lambda: len([line for line in _log(gateway) if "level of the log" in line["event"]]) == 2)
            await agent.call("alpha", "echo", {"text": "a secret"}, req_id="c" * 32)
        [call] = lines("call")
        assert (call["req_id"], call["trace_id"], call["office"], call["member"]) == ("b" * 32, "b" * 32, LAB, "anna")
        [join] = [line for line in lines("join") if line["member"] == "anna"]
        assert join["office"] == LAB
        assert "a secret" not in gateway.log.read_text(encoding="utf-8")


def _log(part: Part) -> Iterable[Record]:
    for line in part.log.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


async def _failures(part: Part) -> bool:
    return (await scraped(part)).get(("smcp_audit_failures_total", ()), 0) > 0


async def _works(call: Any) -> bool:
    try:
        await call
    except FlatError:
        return False
    return True


@contextlib.asynccontextmanager
async def _stream(world: World) -> Any:
    content = json.loads((world.credentials / "registry-1.json").read_text(encoding="utf-8"))
    client = await nats.connect(
        world.nats_url, user=content["name"], password=content["secret"], inbox_prefix=content["inbox_prefix"]
    )
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def _fill(js: JetStreamContext) -> None:
    """Let the stream take nothing more."""
    info = await js.stream_info("AUDIT")
    await js.update_stream(info.config.evolve(max_bytes=max(info.state.bytes, 1), discard=api.DiscardPolicy.NEW))


async def _empty(js: JetStreamContext) -> None:
    info = await js.stream_info("AUDIT")
    await js.update_stream(info.config.evolve(max_bytes=64 * 1024 * 1024))
