"""The garbage collector does not search what was loaded at the start."""

import subprocess
import sys

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
