"""One call of the published `organize_desktop`, in the environment of the published package.

Reads the windows from standard input (a JSON list of `server`, `resource`, `contents`). The last line that it prints is
a JSON list: the milliseconds of the clock and of the processor.
"""

import asyncio
import json
import logging
import sys
import time

from a2c_smcp.computer.desktop.organize import organize_desktop
from mcp.types import ReadResourceResult, Resource


async def main() -> None:
    logging.disable(logging.CRITICAL)  # ours does not log either: its warnings are data
    given = []
    for each in json.load(sys.stdin):
        priority = each["resource"]["annotations"]["priority"]
        legal = {**each["resource"]["annotations"], "priority": priority if priority <= 1 else 0}
        contents = ReadResourceResult.model_validate({"contents": each["contents"]})
        given.append((each["server"], Resource.model_validate({**each["resource"], "annotations": legal}), contents))
    clock, processor = time.perf_counter(), time.process_time()
    await organize_desktop(windows=given, size=None, history=())
    print(json.dumps([(time.perf_counter() - clock) * 1e3, (time.process_time() - processor) * 1e3]))


if __name__ == "__main__":
    asyncio.run(main())
