"""`smcp audit` on a file: what it shows, and what it finds broken."""

import csv
import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from smcp_bus.audit import Event, Trail
from smcp_bus.audit_file import FileSink
from smcp_standalone.audit_reader import COLUMNS, Chains, Wanted, csv_line, read_file


def audit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "smcp_standalone", "audit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def write(path: Path, *events: Event) -> None:
    trail = Trail(logging.getLogger("test"), writer="gateway-1/a", open_sink=lambda made: FileSink(path, made))
    for event in events:
        trail.write(event)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    file = tmp_path / "audit.jsonl"
    write(
        file,
        Event("join", "ok", office="lab", role="agent", name="eve", subject="alice"),
        Event("call", "ok", office="lab", subject="alice", computer="pc", tool="echo", req_id="r1", seconds=0.0123),
        Event("refusal", "403", office="lab", subject="bob", tool="=cmd()", req_id="r2", why="not for you"),
        Event("call", "tool_error", office="lab", subject="alice", computer="pc", tool="add", req_id="r3"),
    )
    return file


def problems(path: Path) -> list[str]:
    chains = Chains(whole=True)
    for line in read_file(path):
        chains.add(line)
    return chains.check()


async def test_list_filters_and_prints_each_record_as_it_was_written(path: Path) -> None:
    listed = audit("list", "--file", str(path), "--subject", "alice", "--kind", "call", "--json")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.splitlines() == [path.read_text().splitlines()[at] for at in (1, 3)]


async def test_verify_names_the_first_broken_record_and_fails(path: Path) -> None:
    assert audit("verify", "--file", str(path)).returncode == 0
    path.write_text(path.read_text().replace('"outcome":"ok","ms":12.3', '"outcome":"no","ms":12.3'))
    found = audit("verify", "--file", str(path))
    assert found.returncode == 1
    assert "line 2: it was changed, record 2 of gateway-1/a" in found.stderr


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (slice(0, 1), "the records before it, 1 to 1 of gateway-1/a, are missing"),
        (slice(1, 2), "the record before it, 2 of gateway-1/a, is missing"),
        (slice(1, 3), "the record before it, 2 to 3 of gateway-1/a, is missing"),
    ],
)
async def test_a_record_that_was_removed_shows(path: Path, gone: slice, said: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    del lines[gone]
    path.write_text("".join(lines))
    [problem] = problems(path)
    assert said in problem


async def test_a_file_that_is_cut_in_the_middle_is_reported_and_the_rest_is_listed(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])
    listed = audit("list", "--file", str(path), "--json")
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == 3
    assert "line 4 (cut in the middle): is no whole record" in listed.stderr
    assert "is no whole record" in problems(path)[0]


@pytest.mark.parametrize("text", [b"[1]\n", b"\xff\xfe\n", b"{}\n", b'{"kind":"call","writer":1,"seq":"x"}\n'])
async def test_a_line_that_is_no_record_is_a_problem_and_no_crash(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(text)
    assert "is no whole record" in problems(file)[0]


async def test_writers_of_one_file_have_a_chain_each(path: Path) -> None:
    other = Trail(logging.getLogger("test"), writer="registry/b", open_sink=lambda made: FileSink(path, made))
    other.write(Event("leave", "expired", office="lab"))
    write(path.with_name("more"), Event("join", "ok"))
    assert problems(path) == []


async def test_csv_has_no_formulas(path: Path) -> None:
    listed = audit("list", "--file", str(path), "--csv")
    rows = list(csv.DictReader(io.StringIO(listed.stdout)))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["tool"] for row in rows] == ["", "echo", "'=cmd()", "add"]


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(cell: str) -> None:
    [row] = csv.reader(io.StringIO(csv_line([cell, "a,b\nc"])))
    assert row == [f"'{cell}", "a,b\nc"]


def test_wanted_compares_times_and_narrows_the_subject() -> None:
    wanted = Wanted(office="北京 3.*", kind="call")
    assert wanted.nats_subject == "smcp.v1.=E5=8C=97=E4=BA=AC=203=2E=2A.audit.call"
    assert not wanted.matches({"office": "lab", "kind": "call"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--since", "yesterday"], "--since: 'yesterday' is no time"),
        (["--since", "2027-01-31"], "says no time zone"),
        (["--json", "--csv"], "--csv: or --json, not both"),
        (["--file", "/does/not/exist"], "/does/not/exist: cannot be read"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_in_a_line(arguments: list[str], said: str) -> None:
    found = audit("list", *arguments)
    assert found.returncode in (1, 2)
    assert said in found.stderr
    assert "Traceback" not in found.stderr


async def test_records_are_json_with_the_promised_fields(path: Path) -> None:
    promised = {"at", "kind", "subject", "office", "role", "name", "computer", "tool", "outcome", "ms", "req_id"}
    for line in path.read_text().splitlines():
        assert promised | {"args_sha256"} <= json.loads(line).keys()
