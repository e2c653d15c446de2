"""CPU of a gateway per call with the audit trail off and on, 1 KB; the processes are interleaved.

    python -m bench.audit [--runs 5] [--calls 4000]

Promised are 1.15 times of off. Read the ratio: the machine is shared and noisy.
"""

import argparse
import contextlib
import statistics

from bench.call_relay import measure, ours

AT_A_TIME = (1, 64)


def run(runs: int, calls: int) -> None:
    figures: dict[tuple[int, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        systems = [ours(stack, mode, more={"SMCP_AUDIT": mode}) for mode in ("off", "on", "required")]
        for turn in range(runs + 1):
            for concurrency in AT_A_TIME:
                for system in systems:
                    result = measure(system, 1024, concurrency, calls if concurrency > 1 else calls // 4)
                    if turn:  # the first turn warms up
                        figures.setdefault((concurrency, system.name), []).append(result["server_us"])
    for concurrency in AT_A_TIME:
        off = statistics.median(figures[concurrency, "off"])
        for mode in ("off", "on", "required"):
            of = statistics.median(figures[concurrency, mode])
            print(f"{concurrency:>3} at a time  {mode:<9} {of:6.1f} µs CPU per call  {of / off:5.2f} x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=4000)
    chosen = parser.parse_args()
    run(chosen.runs, chosen.calls)
