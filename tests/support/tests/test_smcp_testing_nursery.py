"""What is born in a nursery is a process like any other, and the nursery outlives whatever becomes of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from smcp_testing.leaks import child_processes
from smcp_testing.nursery import born
from smcp_testing.waiting import eventually

SCRIPT = """
import json, os, signal, sys, time
match sys.argv[1:]:
    case ["tell", *words]:
        said = {"words": words, "read": sys.stdin.read(), "x": os.environ.get("X"), "cwd": os.getcwd()}
        print(json.dumps(said))
    case ["exit", code]:
        sys.exit(int(code) if code.isdigit() else code)
    case ["raise"]:
        raise RuntimeError("of the script")
    case ["kill", number]:
        os.kill(os.getpid(), int(number))
    case [how] if how in ("ends well", "is deaf"):
        ending = (lambda *_: sys.exit(7)) if how == "ends well" else signal.SIG_IGN
        signal.signal(signal.SIGTERM, ending)
        print(os.getpid(), flush=True)
        time.sleep(600)
    case ["wait"]:
        print(os.getpid(), flush=True)
        time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = born(script, *arguments, knows=("json",))
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, **options)


def test_it_has_the_arguments_the_input_the_environment_and_the_directory_of_who_asks(
    script: Path, tmp_path: Path
) -> None:
    ended = run(script, "tell", "读 a", "*", input="ü", env={"X": "7"}, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == {"words": ["读 a", "*"], "read": "ü", "x": "7", "cwd": str(tmp_path)}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("exit", "3"), 3, ""),
        (("exit", "in words"), 1, "in words\n"),
        (("raise",), 1, "RuntimeError: of the script\n"),
        (("kill", str(int(signal.SIGKILL))), -signal.SIGKILL, ""),
        (("kill", str(int(signal.SIGTERM))), -signal.SIGTERM, ""),
    ],
)
def test_it_ends_as_it_would_in_a_python_of_its_own(
    script: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = run(script, *arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.endswith(said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL])
async def test_it_ends_with_who_asked_for_it_and_is_found_until_then(script: Path, number: signal.Signals) -> None:
    command = born(script, "wait", knows=("json",))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as asker:
        assert asker.stdout is not None
        forked = psutil.Process(int(asker.stdout.readline()))
        assert {forked.pid, asker.pid} <= {child.pid for child in child_processes()}
        asker.send_signal(number)
    await eventually(lambda: not forked.is_running())


def test_it_is_told_to_end_and_may_do_so_in_its_own_way(script: Path) -> None:
    with subprocess.Popen(born(script, "ends well", knows=("json",)), stdout=subprocess.PIPE) as asker:
        assert asker.stdout is not None
        assert int(asker.stdout.readline()) != asker.pid
        asker.terminate()
        assert asker.wait(60) == 7


async def test_one_that_does_not_want_to_end_is_killed_with_who_asked_for_it(script: Path) -> None:
    with subprocess.Popen(born(script, "is deaf", knows=("json",)), stdout=subprocess.PIPE) as asker:
        assert asker.stdout is not None
        forked = psutil.Process(int(asker.stdout.readline()))
        for _ in range(3):
            asker.terminate()
        assert run(script, "exit", "0").returncode == 0  # by then the nursery has passed them on
        assert forked.is_running()
        assert asker.poll() is None
        asker.kill()
    await eventually(lambda: not forked.is_running())


def test_one_that_fails_where_nobody_reads_it_costs_no_other(script: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = born(script, "raise", knows=("json",))
    assert subprocess.run(command, check=False, stdout=write, stderr=write, timeout=60).returncode == 1
    os.close(write)
    assert run(script, "exit", "0").returncode == 0


def test_a_module_is_born_too() -> None:
    ended = subprocess.run(
        born("json.tool", "--compact", knows=("json",)), check=True, input=b'{"a": 1}', capture_output=True, timeout=60
    )
    assert ended.stdout == b'{"a":1}\n'
    assert born("json.tool", knows=("json",))[0] == sys.executable
