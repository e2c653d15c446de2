"""`smcp audit` on a file: what it shows, and what it finds broken."""

import csv
import io
import json
import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from smcp_bus.audit import MOST_WAITING, OUTCOMES, REPEATED, Event, Trail, sha256
from smcp_bus.audit_sinks import FileSink
from smcp_standalone.audit_reader import COLUMNS, Chains, DuplicateRecords, Line, Wanted, csv_line, read_file
from smcp_testing.fork_server import COMMANDS, born

SMCP = Path(sys.executable).parent / "smcp"


def audit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = born(SMCP, "audit", *arguments, knows=COMMANDS)
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


def chained(*numbers: int) -> Chains:
    """Of a stream whose first records have expired."""
    chains, prev = Chains(whole=False), ""
    for number in range(1, max(numbers) + 1):
        raw = orjson.dumps({"kind": "join", "writer": "w", "seq": number, "prev": prev})
        prev = sha256(raw)
        if number in numbers:
            chains.add(Line(raw, f"message {number}"))
    return chains


def problems(path: Path) -> list[str]:
    chains = Chains(whole=True)
    for line in read_file(path):
        chains.add(line)
    return chains.check()


async def test_list_filters_and_prints_each_record_as_it_was_written(path: Path) -> None:
    listed = audit("list", "--file", str(path), "--subject", "alice", "--kind", "call", "--json")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.splitlines() == [path.read_text().splitlines()[at] for at in (1, 3)]


async def test_list_names_what_it_shows_to_people_and_says_the_zone_of_times(path: Path) -> None:
    join, *_ = audit("list", "--file", str(path)).stdout.splitlines()
    at, *words = join.split("  ")
    assert words == ["join", "ok", "office=lab", "role=agent", "name=eve", "subject=alice"]
    assert datetime.fromisoformat(at).tzinfo is not None


async def test_an_output_that_cannot_be_written_is_a_sentence_and_one_that_nobody_reads_any_more_is_silent(
    path: Path,
) -> None:
    command = born(SMCP, "audit", "list", "--file", str(path), knows=COMMANDS)

    def into(output: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False, timeout=60)

    with Path("/dev/full").open("wb") as full:
        failed = into(full.fileno())
    assert (failed.returncode, failed.stderr) == (1, "error: standard output: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    unread = into(writer)
    os.close(writer)
    assert (unread.returncode, unread.stderr) == (1, "")


async def test_an_approval_that_two_registries_recorded_is_listed_once(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for writer in ("registry-1/a", "registry-2/b"):
        trail = Trail(logging.getLogger("test"), writer=writer, open_sink=lambda made: FileSink(file, made))
        for answer, source in (("no", "rack/c 1"), ("yes", "rack/c 1"), ("yes", "rack/c 2")):
            trail.write(Event("approval", answer, office="lab", computer="pc", req_id="r1", source=source))
    listed = audit("list", "--file", str(file), "--json")
    found = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(each["outcome"], each["source"]) for each in found] == [
        ("no", "rack/c 1"), ("yes", "rack/c 1"), ("yes", "rack/c 2")
    ]  # fmt: skip
    assert audit("verify", "--file", str(file)).returncode == 0


async def test_a_call_that_a_killed_gateway_and_its_repeat_recorded_is_listed_once_and_other_calls_are_all_listed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "audit.jsonl"
    records = (
        ("a", "r1", None, "ok"),
        ("b", "r1", REPEATED, "ok"),
        ("c", "r1", None, "ok"),
        ("d", "r2", REPEATED, "ok"),
    )
    for gateway, req_id, event, outcome in (*records, ("e", "r1", REPEATED, "timeout")):
        trail = Trail(logging.getLogger("test"), writer=gateway, open_sink=lambda made: FileSink(file, made))
        trail.write(Event("call", outcome, office="lab", name="anna", computer="pc", req_id=req_id, event=event))
    assert writers(file) == ["a", "c", "d", "e"]
    old = file.read_text().splitlines()[0].replace('"at":"2', '"at":"1')
    file.write_text("\n".join([old, *file.read_text().splitlines()[1:2]]) + "\n")
    assert writers(file) == ["a", "b"], "what comes long after a call is another call"


async def test_a_call_that_was_attempted_several_times_is_listed_once_with_what_became_of_it(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    records = (
        ("a", "r1", None, "broken_off"),
        ("b", "r1", REPEATED, "ok"),
        ("c", "r1", REPEATED, "503"),
        ("d", "r2", None, "broken_off"),
        ("e", "r1", None, "tool_error"),
        ("f", "r3", None, "503"),
        ("g", "r3", REPEATED, "broken_off"),
        ("h", "r2", None, "broken_off"),
    )
    for gateway, req_id, event, outcome in records:
        trail = Trail(logging.getLogger("test"), writer=gateway, open_sink=lambda made: FileSink(file, made))
        trail.write(Event("call", outcome, office="lab", name="anna", computer="pc", req_id=req_id, event=event))
    assert writers(file) == ["b", "d", "e", "g", "h"]


@pytest.mark.parametrize(
    "other",
    [{"computer": "tablet"}, {"tool": "look"}, {"args_sha256": "2" * 64}, {"name": "bob"}, {"req_id": "r\u202es"}],
)
async def test_a_call_that_was_broken_off_is_listed_beside_a_repeat_of_another_call_with_its_req_id(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    file = tmp_path / "audit.jsonl"
    same: dict[str, Any] = {
        "office": "lab",
        "name": "anna",
        "computer": "pc",
        "tool": "echo",
        "args_sha256": "1" * 64,
        "req_id": "r\ufffds" if "req_id" in other else "r1",  # which reads the same in a record
    }
    repeat = {"event": REPEATED, **same, **other}
    write(file, *(Event("call", each, **same) for each in ("broken_off", "ok")), Event("call", "ok", **repeat))
    assert len(writers(file)) == 3


def test_repeats_hide_nothing_an_hour_after_the_first_and_the_memory_of_them_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_standalone.audit_reader.REMEMBERED", 1)
    repeat = {"kind": "call", "event": REPEATED, "outcome": "ok", "at": "2027-01-01T08:00+00:00", "req_id": "r0"}
    times = [f"2027-01-01T{time}+00:00" for time in ("08:00", "08:50", "09:10", "10:00")]
    repeats = DuplicateRecords()
    assert [repeats.hide({**repeat, "at": at}) for at in times] == [False, True, False, True]
    repeats = DuplicateRecords()
    for each in ("r0", "r1"):
        repeats.expect({**repeat, "req_id": each})
    hidden = [repeats.hide({**repeat, "outcome": "503", "req_id": each}) for each in ("r0", "r1")]
    assert hidden == [False, True], "the oldest is shown with all of its attempts"


def writers(file: Path) -> list[str]:
    return [json.loads(line)["writer"] for line in audit("list", "--file", str(file), "--json").stdout.splitlines()]


async def test_verify_names_the_first_broken_record_and_fails(path: Path) -> None:
    assert audit("verify", "--file", str(path)).returncode == 0
    path.write_text(path.read_text().replace('"outcome":"ok","ms":12.3', '"outcome":"no","ms":12.3'))
    found = audit("verify", "--file", str(path))
    assert found.returncode == 1
    assert "line 2: it was changed, record 2 of gateway-1/a" in found.stderr


async def test_verify_fails_where_a_process_gave_up_records(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    trail = Trail(logging.getLogger("test"), writer="gateway-1/a", open_sink=lambda made: FileSink(file, made))
    for trail.lost in (0, 2, 5):
        trail.write(Event("leave", "ok", office="lab"))
    found = audit("verify", "--file", str(file))
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("gateway-1/a gave up records, as the trail took none: 5\n")


async def test_verify_of_no_record_fails(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    found = audit("verify", "--file", str(tmp_path / "empty"))
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "error: there is no record: nothing was checked\n"


async def test_what_an_editor_puts_around_records_is_no_change_and_a_record_that_is_there_twice_counts_once(
    path: Path,
) -> None:
    first, *others = path.read_bytes().splitlines()
    path.write_bytes(b"\r\n".join([first, first, b"", *others, b""]))
    found = audit("verify", "--file", str(path))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("4 records of 1 process:")


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
    assert "line 4 (cut in the middle): is not a whole record" in listed.stderr
    assert "is not a whole record" in problems(path)[0]


@pytest.mark.parametrize("text", [b"[1]\n", b"\xff\xfe\n", b"{}\n", b'{"kind":"call","writer":1,"seq":"x"}\n'])
async def test_a_line_that_is_no_record_is_a_problem_and_no_crash(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(text)
    assert "is not a whole record" in problems(file)[0]


async def test_writers_of_one_file_have_a_chain_each(path: Path) -> None:
    other = Trail(logging.getLogger("test"), writer="registry/b", open_sink=lambda made: FileSink(path, made))
    other.write(Event("leave", "expired", office="lab"))
    write(path.with_name("more"), Event("join", "ok"))
    assert problems(path) == []


async def test_a_call_for_a_user_names_both_in_every_form_and_records_without_that_field_stay_whole(
    path: Path,
) -> None:
    service = Trail(logging.getLogger("test"), writer="gateway/c", open_sink=lambda made: FileSink(path, made))
    service.write(Event("call", "ok", office="lab", subject="otto", tool="read"))
    service.write(Event("call", "ok", office="lab", subject="otto", by="smcp-mcp\x1b[31m", tool="read"))
    chosen = ("list", "--file", str(path), "--subject", "otto")
    plain, by_both = audit(*chosen).stdout.splitlines()
    assert "by=" not in plain
    assert "subject=otto  by=smcp-mcp" in by_both
    records = [json.loads(line) for line in audit(*chosen, "--json").stdout.splitlines()]
    rows = list(csv.DictReader(io.StringIO(audit(*chosen, "--csv").stdout)))
    assert [record.get("by") for record in records] == [None, rows[1]["by"]]
    assert rows[0]["by"] == ""
    assert rows[1]["by"].startswith("smcp-mcp")
    assert rows[1]["by"].isprintable()
    assert audit("verify", "--file", str(path)).returncode == 0


async def test_csv_has_no_formulas(path: Path) -> None:
    listed = audit("list", "--file", str(path), "--csv")
    rows = list(csv.DictReader(io.StringIO(listed.stdout)))
    assert list(rows[0]) == list(COLUMNS)
    assert {"source", "lost"} <= rows[0].keys()
    assert [row["tool"] for row in rows] == ["", "echo", "'=cmd()", "add"]


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", " =1+1", "\u3000\uff1d1+1"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(cell: str) -> None:
    [row] = csv.reader(io.StringIO(csv_line([cell, "a,b\nc"])))
    assert row == [f"'{cell}".replace("\r", "\n"), "a,b\nc"]


def test_what_a_terminal_obeys_is_gone_before_a_formula_is_looked_for() -> None:
    assert csv_line(["\x1b[31m=1+1", "\u202ea", 5, None]) == "'=1+1,\ufffda,5,"


async def test_a_record_with_white_space_between_its_values_is_one_line_of_json(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(b'{"kind":"call",\t"name":\r"a\\tb"}\n')
    listed = audit("list", "--file", str(file), "--json")
    assert json.loads(listed.stdout) == {"kind": "call", "name": "a\tb"}
    assert "\t" not in listed.stdout


async def test_no_command_prints_what_a_terminal_obeys_and_json_keeps_its_value(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    record = {"kind": "join", "name": "a\u202e\u009b31mb", "writer": "w\u009b31m\u202e", "seq": 2, "prev": ""}
    file.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    listed = audit("list", "--file", str(file), "--json")
    assert json.loads(listed.stdout) == record
    broken = audit("verify", "--file", str(file))
    assert broken.returncode == 1
    for output in (listed.stdout, broken.stderr, audit("list", "--file", str(file), "--csv").stdout):
        assert not {"\u202e", "\u009b", "\x1b"} & set(output)


@pytest.mark.parametrize(
    ("subject", "whole"),
    [
        ("smcp.v1.lab.audit.call", True),
        ("smcp.v1.lab.audit.join", False),
        ("smcp.v1.attic.audit.call", False),
        ("smcp.v1.=.audit.call", False),
    ],
)
def test_a_record_that_says_something_else_than_its_subject_is_in_no_chain(subject: str, whole: bool) -> None:
    chains = Chains(whole=True)
    raw = orjson.dumps({"kind": "call", "office": "lab", "writer": "w", "seq": 1, "prev": ""})
    chains.add(Line(raw, "message 7", subject))
    said = "message 7: says another kind or office than the subject that it was written on"
    assert chains.check() == ([] if whole else [said])


def test_where_the_beginning_has_expired_records_that_were_sent_again_may_stand_alone() -> None:
    assert chained(3, 5, 6, 9, 10).check() == []
    late = MOST_WAITING + 10
    [problem] = chained(3, 5, *range(late - 5, late), late + 1).check()
    assert f"the record before it, {late} of w, is missing" in problem
    [problem] = chained(1, 2, 4).check()
    assert "the record before it, 3 of w, is missing" in problem


def test_wanted_compares_times_and_narrows_the_subject() -> None:
    wanted = Wanted({"office": "北京 3.*", "kind": "call"})
    assert wanted.nats_subject == "smcp.v1.=E5=8C=97=E4=BA=AC=203=2E=2A.audit.call"
    assert not wanted.matches({"office": "lab", "kind": "call"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--since", "yesterday"], "--since: 'yesterday' is not a valid time"),
        (["--since", "0001-01-01T00:00+01:00"], "is not a valid time"),
        (["--since", "2027-01-31T12:00"], "says no time zone"),
        (["--kind", "calls"], "--kind: 'calls' is none of join, leave, refusal, call, cancel, approval, key"),
        (["--outcome", "blah"], "--outcome: 'blah' is none of ok, moved, "),
        (["--office", ""], "--office: is empty"),
        (["--json", "--csv"], "--csv and --json: set only one"),
        (["--file", "/does/not/exist"], "/does/not/exist: cannot be read"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_in_a_line(arguments: list[str], said: str) -> None:
    found = audit("list", *arguments)
    assert found.returncode == 2
    assert said in found.stderr
    assert "Traceback" not in found.stderr


def test_the_guide_explains_every_outcome() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/audit.md").read_text("utf-8")
    rows = guide.partition("| kind | outcomes |")[2].partition("\n\n")[0]
    explained = {word for row in rows.splitlines()[2:] for word in re.findall("`([a-z_]+)`", row.split("|")[2])}
    assert explained == {*OUTCOMES}


def test_verify_says_of_a_directory_that_it_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = audit("verify", "--file", ".")
    assert found.returncode == 2
    assert "cannot be read" in found.stderr
    assert "Traceback" not in found.stderr


async def test_a_date_is_a_time_in_utc(path: Path) -> None:
    today = datetime.now(UTC).date()
    assert len(audit("list", "--file", str(path), "--since", f"{today}").stdout.splitlines()) == 4
    assert audit("list", "--file", str(path), "--since", f"{today + timedelta(days=2)}").stdout == ""


async def test_records_are_json_with_the_promised_fields(path: Path) -> None:
    promised = {"at", "kind", "subject", "office", "role", "name", "computer", "tool", "outcome", "ms", "req_id"}
    for line in path.read_text().splitlines():
        assert promised | {"args_sha256"} <= json.loads(line).keys()
