"""The processes that are measured: started for one benchmark and ended with it."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

import psutil

from bench import published_env

BIN: Final = Path(sys.executable).parent


def start(
    stack: contextlib.ExitStack, *command: str | Path, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=published_env.ROOT,
    )

    def stop() -> None:
        cast("IO[str]", process.stdin).close()
        process.terminate()
        process.wait(20)
        cast("IO[str]", process.stdout).close()

    stack.callback(stop)
    return process


def line_of(process: subprocess.Popen[str], wanted: str = "") -> str:
    for line in cast("IO[str]", process.stdout):
        if wanted in line:
            return line.strip()
    raise SystemExit(f"{process.args!r} ended without saying {wanted!r}")


def services_env(nats_url: str) -> dict[str, str]:
    """The settings of registry and gateway: free ports, and no log beside errors."""
    return {
        "SMCP_NATS_URL": nats_url,
        "SMCP_HEALTH_PORT": "0",
        "SMCP_LOG_LEVEL": "error",
        "SMCP_GATEWAY_PORT": "0",
        "SMCP_REBALANCE_S": "0",  # clients stay where a benchmark has put them
    }


def start_nats(stack: contextlib.ExitStack, files: Path, *more: str) -> tuple[subprocess.Popen[str], str]:
    """A nats-server with JetStream on a free port of loopback, and its URL; its ports stand in `files/*.ports`."""
    options: tuple[str | Path, ...] = (
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
        *more,
        "-js",
        "-l",
        files / "log",
        "-sd",
        files / "js",
    )
    nats = start(stack, BIN / "nats-server", *options, "--ports_file_dir", files)
    for _ in _polls():
        for found in files.glob("*.ports"):
            if not found.stat().st_size:
                break  # it is just being written
            return nats, str(json.loads(found.read_text())["nats"][0])
        if nats.poll() is not None:
            break
    raise SystemExit("nats-server did not start")


def wait_until_ready(url: str) -> None:
    for _ in _polls():
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(f"{url}/readyz", timeout=2):
            return
    raise SystemExit("the gateway did not get ready")


def _polls() -> Iterator[None]:
    for _ in range(300):
        yield
        time.sleep(0.05)


def cpu_of_one(process: psutil.Process) -> float:
    """Seconds on a CPU, over all its threads."""
    # the scheduler counts in ns where cpu_times has 10 ms steps
    if counted := _schedstat(process, 0):
        return counted
    times = process.cpu_times()
    return float(times.user + times.system)


def waited_of_one(process: psutil.Process) -> float:
    """Seconds that its threads waited for a CPU, which others had; 0 on systems that do not count them."""
    return _schedstat(process, 1)


def _schedstat(process: psutil.Process, field: int) -> float:
    threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[field]) for thread in threads) / 1e9
