"""The benchmark of attacks runs to its end."""

import asyncio
import re
import sys
from asyncio.subprocess import PIPE

import pytest

from bench.published_env import ROOT


@pytest.mark.parametrize("chosen", ["wrong tokens", "tools without end, at smcp-mcp"])
async def test_the_bench_shows_the_calls_of_two_offices_around_an_attack(chosen: str) -> None:
    options = ("--offices", "2", "--seconds", "0.5", "--attack", chosen)
    bench = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.hostile", *options, cwd=ROOT, stdout=PIPE, stderr=PIPE
    )
    output, errors = await bench.communicate()
    assert bench.returncode == 0, errors.decode()
    (row,) = re.findall(rf"│ {chosen} .*", output.decode())
    attack, services, calls, p99, _, failed, evicted, *_ = (cell.strip() for cell in row.strip("│ ").split("│"))
    assert (attack, services, failed, evicted) == (chosen, "this", "0", "0")
    assert len(calls.split(" / ")) == len(p99.split(" / ")) == 3
