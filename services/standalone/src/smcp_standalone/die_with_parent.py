"""Run as `python die_with_parent.py PARENT_PID PROGRAM ARGS...`: become PROGRAM, which ends when its parent does.

A `kill -9` of the parent runs no clean-up, so the kernel has to be asked before the program starts (Linux only).
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it was gone before the kernel was asked
            sys.exit(1)
    os.execv(program, [program, *arguments])  # noqa: S606 (no shell is the point)


if __name__ == "__main__":
    main()
