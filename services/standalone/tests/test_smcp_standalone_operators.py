"""`smcp offices`, `smcp room` and `smcp watch`, as they are installed."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import unicodedata
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from smcp_bus.audit import STREAM, Event, Trail
from smcp_bus.audit_sinks import StreamSink
from smcp_bus.nats.bus import Bus
from smcp_bus.operations import serve_log_level
from smcp_bus.registry_contract import Claim
from smcp_bus.subjects import AUDIT_ALL, AUDIT_OF_SEVERAL
from smcp_service.logging import Level
from smcp_standalone.operator_commands import PAGE, advertise_run
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.member_process import MemberProcess, member_process
from smcp_testing.nats_process import NatsServer
from smcp_testing.registry_world import asking, registries
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually

SMCP = Path(sys.executable).parent / "smcp"
EVIL = "a\u202eb"
HERE = datetime.now().astimezone().utcoffset()
OFFICES = ((1, "lab"), (2, "attic"), (3, "lab"))
RECORD = {
    "at": "2026-01-31T12:00:00.123Z",
    "kind": "call",
    "office": "lab",
    "role": "agent",
    "name": EVIL,
    "computer": "pc",
    "tool": "echo\n\x1b[31mred",
    "outcome": "ok",
    "ms": 12.5,
    "arguments": {"text": "hunter2"},
}


async def smcp(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_")}
    return await asyncio.to_thread(
        subprocess.run,
        born(SMCP, *arguments, knows=COMMANDS),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**kept, **environment},
    )


def cells(table: str, border: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(border)[1:-1]] for line in table.splitlines() if border in line]


@asynccontextmanager
async def watching(nats_url: str, *options: str, office: str = "lab") -> AsyncIterator[tuple[Bus, ServiceProcess]]:
    command = born(SMCP, "watch", office, *options, knows=COMMANDS)
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        await bus.jetstream().add_stream(name=STREAM, subjects=[AUDIT_ALL])
        async with service_process(*command, env={"SMCP_NATS_URL": nats_url}) as watch:
            await watch.logged(f"Watching the office {office!r}; ctrl-C ends it.")
            yield bus, watch


async def joined(member: MemberProcess, claim: Claim) -> None:
    await member.join("lab", "agent", EVIL, claim)
    await member.join("lab", "computer", "pc", member.claim("s2"))


async def test_offices_and_members_are_shown_in_printable_text_and_as_json(nats_url: str) -> None:
    async with registries(nats_url, count=1) as [registry], member_process(nats_url) as member:
        await joined(member, member.claim("s1"))
        await eventually(lambda: len(list(registry.view.members("lab"))) == 2)
        listed = await smcp("offices", SMCP_NATS_URL=nats_url)
        assert listed.returncode == 0, listed.stderr
        [head], [row] = cells(listed.stdout, "┃"), cells(listed.stdout, "│")
        assert head == ["Office", "Agent", "Since", "Computers"]
        assert (*row[:2], row[3]) == ("lab", "a\ufffdb", "1")
        [office] = json.loads((await smcp("offices", "--json", SMCP_NATS_URL=nats_url)).stdout)["offices"]
        assert (office["office"], office["agent"], office["computers"]) == ("lab", EVIL, 1)
        shown = await smcp("room", "lab", SMCP_NATS_URL=nats_url)
        assert "" not in cells(shown.stdout, "┃")[0]
        assert {datetime.fromisoformat(row[2]).utcoffset() for row in cells(shown.stdout, "│")} == {HERE}
        assert [row[:2] for row in cells(shown.stdout, "│")] == [["agent", "a\ufffdb"], ["computer", "pc"]]
        told = json.loads((await smcp("room", "lab", "--json", SMCP_NATS_URL=nats_url)).stdout)
        assert [(each["role"], each["name"]) for each in told["members"]] == [("agent", EVIL), ("computer", "pc")]
        nobody = await smcp("room", "attic", SMCP_NATS_URL=nats_url)
        assert (nobody.returncode, nobody.stdout) == (0, "")
        assert "no members" in nobody.stderr


async def test_all_members_of_a_large_office_are_shown(nats_url: str) -> None:
    async with registries(nats_url, count=1) as [registry], member_process(nats_url) as member:
        for number in range(PAGE + 1):
            await member.join("lab", "computer", f"pc{number}", member.claim(f"s{number}"))
        await eventually(lambda: len(list(registry.view.members("lab"))) == PAGE + 1)
        shown = json.loads((await smcp("room", "lab", "--json", SMCP_NATS_URL=nats_url)).stdout)
        assert len({each["name"] for each in shown["members"]}) == len(shown["members"]) == PAGE + 1


@pytest.mark.parametrize("as_json", [False, True])
async def test_watch_shows_what_happened_but_no_arguments_and_nothing_that_a_terminal_obeys(
    nats_url: str, as_json: bool
) -> None:
    options = ["--json"] if as_json else []
    leave = orjson.dumps({"kind": "leave", "outcome": "ok", "office": "lab", "ms": None})
    async with watching(nats_url, "--count", "2", *options) as (bus, watch):
        for body in (b"no json", b"[]", b"{}", orjson.dumps(RECORD)):
            await bus.jetstream().publish("smcp.v1.lab.audit.call", body)
        await bus.jetstream().publish("smcp.v1.lab.audit.leave", leave)
        assert await watch.exit_code() == 0
        call, last = watch.output
        assert "hunter2" not in call
        if as_json:
            assert json.loads(call) == {
                field: RECORD.get(field)
                for field in (
                    *("at", "kind", "office", "role", "name", "computer", "tool", "event", "outcome", "why", "ms"),
                    *("req_id", "trace_id"),
                )
            }
            assert json.loads(last)["kind"] == "leave"
        else:
            shown = "call  ok  office=lab  role=agent  name=a\ufffdb  computer=pc  tool=echo red  ms=12.5"
            assert call.split("  ", 1)[1] == shown
            assert last.split("  ", 1)[1] == "leave  ok  office=lab"


@pytest.mark.parametrize("max_bytes", [-1, 4 * 1024])
async def test_verify_fails_if_the_oldest_records_were_deleted_and_counts_those_that_expired(
    nats_url: str, max_bytes: int
) -> None:
    async with registries(nats_url, count=1), asking(nats_url) as bus:
        js = bus.jetstream()
        await js.add_stream(name=STREAM, subjects=[AUDIT_ALL], max_bytes=max_bytes)
        trail = Trail(logging.getLogger("test"), writer="w", open_sink=lambda made: StreamSink(bus, made))
        for number in range(1, 31):
            trail.write(Event("leave", "ok", office="lab"))
            await eventually(lambda: trail.written == number)  # noqa: B023 -- awaited here
        if max_bytes < 0:
            whole = await smcp("audit", "verify", SMCP_NATS_URL=nats_url)
            assert whole.stdout == "30 records of 1 process: none is missing or changed\n"
            await js.purge_stream(STREAM, seq=10)
        first = (await js.stream_info(STREAM)).state.first_seq
        assert first > 1
        found = await smcp("audit", "verify", SMCP_NATS_URL=nats_url)
        if max_bytes < 0:
            assert found.returncode == 1
            said = "deleted from the beginning of the stream: 9 messages, none can have expired\n"
            assert found.stderr.startswith(said)
            for seq in (12, 30):
                await js.delete_msg(STREAM, seq)
            found = await smcp("audit", "verify", SMCP_NATS_URL=nats_url)
            assert "deleted from the stream: 2 messages\n" in found.stderr
        else:
            assert found.returncode == 0, found.stderr
            assert f"{31 - first} records of 1 process: none is missing or changed; {first - 1} older" in found.stdout


async def test_watch_shows_an_approval_once_that_two_registries_recorded_and_a_record_once_that_was_sent_again(
    nats_url: str,
) -> None:
    approval: dict[str, Any] = {
        "kind": "approval",
        "outcome": "yes",
        "office": "lab",
        "tool": "echo",
        "ms": None,
        "source": "pc 1",
    }
    records = [approval | {"writer": writer, "seq": 1} for writer in ("registry-1", "registry-2")]
    records.append(approval | {"writer": "registry-1", "seq": 2, "source": "pc 2"})
    leave = {"kind": "leave", "outcome": "ok", "office": "lab", "writer": "registry-1", "seq": 3, "ms": None}
    async with watching(nats_url, "--count", "3") as (bus, watch):
        for record in (*records, records[0], leave):
            await bus.jetstream().publish(f"smcp.v1.lab.audit.{record['kind']}", orjson.dumps(record))
        assert await watch.exit_code() == 0
        said = ["approval  yes  office=lab  tool=echo"] * 2
        assert [line.split("  ", 1)[1] for line in watch.output] == [*said, "leave  ok  office=lab"]


async def test_records_of_several_offices_in_one_message_are_each_shown_for_its_office(nats_url: str) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    records = [RECORD | {"at": at, "office": office, "writer": "w", "seq": seq, "prev": ""} for seq, office in OFFICES]
    message = b"\n".join(map(orjson.dumps, records))
    async with watching(nats_url, "--json", "--count", "2") as (bus, watch):
        await bus.jetstream().publish(AUDIT_OF_SEVERAL, message)
        assert await watch.exit_code() == 0
        assert [json.loads(line)["office"] for line in watch.output] == ["lab", "lab"]
        for chosen, seqs in (([], [1, 2, 3]), (["--office", "lab"], [1, 3]), (["--office", "attic"], [2])):
            listed = await smcp("audit", "list", "--json", *chosen, SMCP_NATS_URL=nats_url)
            assert [json.loads(line)["seq"] for line in listed.stdout.splitlines()] == seqs


async def test_watch_shows_records_of_one_and_of_several_offices_in_the_order_in_which_they_came(
    nats_url: str,
) -> None:
    async with watching(nats_url, "--json", "--count", "40") as (bus, watch):
        for number in range(40):
            record = orjson.dumps(RECORD | {"writer": "w", "seq": number, "req_id": str(number)})
            bus.send("smcp.v1.lab.audit.call" if number % 3 else AUDIT_OF_SEVERAL, "", b"", record)
        assert await watch.exit_code() == 0
        assert [int(json.loads(line)["req_id"]) for line in watch.output] == list(range(40))


@pytest.mark.parametrize("office", ["Caf\u00e9", EVIL, "\U0001f600" * 128])
async def test_an_office_is_found_by_its_name_whatever_it_holds(nats_url: str, office: str) -> None:
    named = unicodedata.normalize("NFD", office)
    async with watching(nats_url, "--count", "1", office=named) as (bus, watch):
        trail = Trail(logging.getLogger("test"), writer="w", open_sink=lambda made: StreamSink(bus, made))
        trail.write(Event("call", "ok", office=office, tool=EVIL))
        assert await watch.exit_code() == 0
        await trail.close()
        listed = await smcp("audit", "list", "--json", "--office", named, "--tool", EVIL, SMCP_NATS_URL=nats_url)
        assert [json.loads(line)["seq"] for line in listed.stdout.splitlines()] == [1], listed.stderr


async def test_what_is_wrong_is_said_in_one_line_with_an_exit_code(nats_url: str, tmp_path: Path) -> None:
    credential = tmp_path / "creds.json"
    credential.write_text('{"name": "x", "secret": "y", "inbox_prefix": "x"}')
    for arguments, environment, code, said in (
        (["room", "a\nb"], {}, 2, "OFFICE: holds a control character, or a lone surrogate"),
        (["watch", "x" * 10_000], {}, 2, "OFFICE: a name has 1 to 128 characters"),
        (["audit", "list", "--office", "\x1b[31m"], {}, 2, "--office: is empty"),
        (["log-level", "loud"], {}, 2, "LEVEL: 'loud' is none of debug, info"),
        (["offices"], {"SMCP_NATS_URL": "http://x"}, 2, "SMCP_NATS_URL"),
        (["offices"], {"SMCP_NATS_CREDS": str(credential)}, 2, "field 'inbox_prefix'"),
        (["audit", "list"], {"SMCP_NATS_URL": "nats://127.0.0.1:1"}, 1, "could not be reached"),
        (["offices"], {"XDG_STATE_HOME": str(tmp_path)}, 1, "no `smcp up` of this user runs here"),
        (["audit", "list"], {"XDG_STATE_HOME": str(tmp_path)}, 1, "for another system set SMCP_NATS_URL"),
        (["offices"], {"SMCP_NATS_URL": nats_url}, 1, "no registry answers"),
        (["audit", "list"], {"SMCP_NATS_URL": nats_url}, 1, "no registry answers"),
        (["audit", "verify"], {"SMCP_NATS_URL": nats_url}, 1, "no registry answers"),
    ):
        ended = await smcp(*arguments, **environment)
        assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
        assert said in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


async def test_a_credential_that_is_missing_is_named_once(tmp_path: Path) -> None:
    config = tmp_path / "auth.conf"
    config.write_text('authorization { users: [ {user: "ops", password: "secret"} ] }\n')
    server = NatsServer(tmp_path / "nats", config=config)
    await server.start()
    try:
        ended = await smcp("offices", SMCP_NATS_URL=server.url)
        assert ended.returncode == 1
        assert ended.stderr.endswith("asks for a credential, and there is none (SMCP_NATS_CREDS)\n")
    finally:
        await server.stop()


async def test_closed_standard_streams_are_no_crash(nats_url: str) -> None:
    closed = ("sh", "-c", '"$0" "$@" <&- >&-', str(SMCP), "offices")
    environment = {**os.environ, "SMCP_NATS_URL": nats_url}
    process = await asyncio.create_subprocess_exec(*closed, env=environment, stderr=subprocess.PIPE)
    async with asyncio.timeout(60):
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith("error: no registry answers")


async def test_beside_two_systems_the_operator_has_to_say_which_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = tmp_path / "creds.json"
    credential.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with advertise_run("nats://127.0.0.1:1", credential, "http://127.0.0.1:8001"):
        [run] = (tmp_path / "a2c-smcp/runs").iterdir()
        run.with_name(f"{os.getppid()}.json").write_text(run.read_text().replace(":8001", ":8002"))
        ended = await smcp("offices")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "2 `smcp up` processes are running" in ended.stderr
    for port in (8001, 8002):
        assert f"SMCP_NATS_CREDS={credential}  # http://127.0.0.1:{port}" in ended.stderr


async def test_a_broken_credential_of_the_system_that_runs_here_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = tmp_path / "creds.json"
    credential.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with advertise_run("nats://127.0.0.1:1", credential, "http://127.0.0.1:8001"):
        ended = await smcp("offices")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {credential}: is not a JSON object")
    assert len(ended.stderr.splitlines()) == 1


class Switch(Level):
    def set(self, level: str) -> None:
        self.name = level


async def test_a_level_may_be_in_capitals_and_an_unknown_credential_is_told(nats_url: str) -> None:
    switch = Switch()
    async with asking(nats_url) as bus, serve_log_level(bus, "registry", switch):
        assert (await smcp("log-level", "DEBUG", SMCP_NATS_URL=nats_url)).returncode == 0
        assert switch.name == "debug"
        unknown = await smcp("log-level", "info", "--credential", "nobody", SMCP_NATS_URL=nats_url)
        assert (unknown.returncode, switch.name) == (1, "debug")
        assert "no such process answers" in unknown.stderr


async def test_follow_shows_each_record_once_and_none_is_missing_after_an_interruption(nats_url: str) -> None:
    def record(number: int) -> bytes:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        return orjson.dumps({**RECORD, "at": at, "writer": "w", "seq": number, "prev": ""})

    command = born(SMCP, "audit", "follow", "--json", knows=COMMANDS)
    async with asking(nats_url) as bus:
        js = bus.jetstream()
        await js.add_stream(name=STREAM, subjects=[AUDIT_ALL])
        await js.publish("smcp.v1.lab.audit.call", record(1))
        async with AsyncExitStack() as first:
            await first.enter_async_context(registries(nats_url, count=1))  # without one the command ends at its start
            async with service_process(*command, env={"SMCP_NATS_URL": nats_url}) as follow:
                await follow.logged("following; ctrl-C ends it")
                for number in (2, 2):
                    await js.publish("smcp.v1.lab.audit.call", record(number))
                await eventually(lambda: len(follow.output) == 1)
                await first.aclose()
                nobody = "no registry answers: none runs, it is an older one, or NATS does not permit it"
                await follow.logged(f"{nobody}; it is asked again")
                await js.publish("smcp.v1.lab.audit.join", record(3))  # its kind is another one
                await js.publish("smcp.v1.lab.audit.call", record(4))
                async with registries(nats_url, count=1):
                    await eventually(lambda: len(follow.output) == 2)
                    listed = await smcp("audit", "list", "--since", "1h", "--json", SMCP_NATS_URL=nats_url)
                    assert [json.loads(line)["seq"] for line in listed.stdout.splitlines()] == [1, 2, 4]
                await follow.logged("message 4: says another kind or office than the subject that it was written on")
        assert [json.loads(line)["seq"] for line in follow.output] == [2, 4]
