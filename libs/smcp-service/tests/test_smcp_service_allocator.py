"""Memory that a process frees and needs again at once is kept, what stays moves into huge pages and is not searched."""

import subprocess
import sys

SCRIPT = """
import resource, sys
from smcp_service.cli import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def bodies():
    return [bytes(100_000) for _ in range(100)]

bodies()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    bodies()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that the kernel had to give a process for bodies that it had had before."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True, timeout=60)
    return int(run.stdout)


def test_bodies_that_were_freed_cost_no_new_pages() -> None:
    assert faults("keep") < 1000
    assert faults("leave") > 10_000


def test_what_is_in_memory_stays_as_it_is_in_huge_pages() -> None:
    script = """
import hashlib
from smcp_service.cli import use_huge_pages

bodies = [str(number) * 1000 for number in range(5000)]
before = hashlib.sha256("".join(bodies).encode()).digest()
use_huge_pages()
assert hashlib.sha256("".join(bodies).encode()).digest() == before
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_an_area_of_which_little_was_touched_takes_no_more_memory() -> None:
    script = """
import mmap
from pathlib import Path
from smcp_service.cli import use_huge_pages

def in_memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

area = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(area), 2 << 20):
    area[at] = 1
before = in_memory()
use_huge_pages()
grown = in_memory() - before
assert grown < 32 << 20, grown
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


PROGRAM = """
import gc
from smcp_service.cli import tune_garbage_collector
loaded = len(gc.get_objects())
tune_garbage_collector()
print(loaded, gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled(), gc.get_threshold()[0])
"""


def test_the_garbage_collector_skips_startup_objects_and_collects_later_ones() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    loaded, frozen, searched, enabled, youngest = run.stdout.split()
    assert int(frozen) > 0.9 * int(loaded)
    assert int(searched) < 0.01 * int(loaded)
    assert enabled == "True"
    assert int(youngest) > 700


def test_the_garbage_collector_searches_few_objects_at_a_time_unless_it_searches_all() -> None:
    script = """
import gc
from smcp_service.cli import tune_garbage_collector

searched = []

def note(phase, info):
    if phase == "start" and info["generation"] == 1:
        searched.append(len(gc.get_objects(0)) + len(gc.get_objects(1)))

tune_garbage_collector()
gc.callbacks.append(note)
kept = [[number] for number in range(200_000)]
assert len(searched) > 5
assert max(searched) < 25_000, max(searched)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
