"""A file of audit records that grows and is rotated while it is read."""

import json
import sys
from pathlib import Path

from smcp_bus.audit_sinks import former
from smcp_standalone.audit_reader import read_file
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

SMCP = Path(sys.executable).parent / "smcp"


async def test_follow_shows_what_is_appended_to_a_file_also_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"kind":"call","tool":"before"}\n')
    command = born(SMCP, "audit", "follow", "--kind", "call", "--json", knows=COMMANDS)
    async with service_process(*command, env={"SMCP_AUDIT_FILE": str(path)}) as following:
        await following.logged("following; ctrl-C ends it")
        with path.open("ab") as file:
            file.write(b'{"kind":"call","tool":"a"}\n{"kind":"join"}\n{"kind":"call",')
            file.flush()
            await eventually(lambda: len(following.output) == 1)
            file.write(b'"tool":"b"}\n')
        path.rename(former(path, 1))
        path.write_bytes(b'{"kind":"call","tool":"c"}\n')
        await eventually(lambda: len(following.output) == 3)
    assert [json.loads(line)["tool"] for line in following.output] == ["a", "b", "c"]


async def test_follow_waits_for_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    command = born(SMCP, "audit", "follow", "--file", str(file), "--json", knows=COMMANDS)
    async with service_process(*command) as following:
        await following.logged("following; ctrl-C ends it")
        file.write_bytes(b'{"kind":"join"}\n')
        await eventually(lambda: following.output)


def test_a_rotation_while_files_are_read_skips_none_and_shows_none_twice(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for number in range(3):
        former(file, number).write_text(f"{number}\n")
    lines = read_file(file)
    first = next(lines)
    for number in (2, 1, 0):
        former(file, number).rename(former(file, number + 1))
    file.write_text("new\n")
    assert [line.raw for line in (first, *lines)] == [b"2", b"1", b"0"]
