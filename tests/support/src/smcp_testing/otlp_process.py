"""`smcp_testing.otlp_receiver` as a child process of the test run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.waiting import eventually

_START_S = 60.0
"""As the other processes of tests have. At a load of 13 it took more than 20 s three times: the fork server may have to
import the commands first."""
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class OtlpReceiver:
    """A running receiver. `url` is what `OTEL_EXPORTER_OTLP_ENDPOINT` wants."""

    process: asyncio.subprocess.Process
    url: str
    _http: aiohttp.ClientSession

    async def spans(self) -> list[dict[str, Any]]:
        """All spans so far, in the order in which they came; see `otlp_receiver.spans_of`."""
        async with self._http.get(f"{self.url}/spans") as response:
            listed: list[dict[str, Any]] = orjson.loads(await response.read())
            return listed

    async def wait_for(self, count: int, *, trace_id: str | None = None, timeout: float = 15.0) -> list[dict[str, Any]]:
        """The spans (of one trace, if given), once there are `count`. Raises AssertionError after `timeout`."""

        async def enough() -> list[dict[str, Any]]:
            spans = [each for each in await self.spans() if trace_id in {None, each["trace_id"]}]
            assert len(spans) >= count, f"{len(spans)} of {count} spans: {[span['name'] for span in spans]}"
            return spans

        return await eventually(enough, timeout=timeout, message=f"{count} spans did not arrive")


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[OtlpReceiver]:
    """Start a receiver on a free port of 127.0.0.1, and end it with the body."""
    process = await asyncio.create_subprocess_exec(
        *born("smcp_testing.otlp_receiver", knows=COMMANDS),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            http_port = int(await process.stdout.readline())
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
            yield OtlpReceiver(process, f"http://127.0.0.1:{http_port}", http)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
