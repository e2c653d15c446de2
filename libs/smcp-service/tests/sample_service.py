"""A service as the services are: the tests run it as a process. `SMCP_MODE` says what it does."""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import typer
from opentelemetry import context as otel_context
from opentelemetry import trace
from pydantic import SecretStr

from smcp_service.cli import check_config_option, run_app, serve_command, version_option
from smcp_service.health import Readiness, serve_health
from smcp_service.lifecycle import Failure, background
from smcp_service.logging import bind_call
from smcp_service.settings import ServiceSettings, load_settings
from smcp_service.telemetry import TRACE_ID_KEY

TRACE_ID = 0x11112222333344445555666677778888

app = typer.Typer()


class SampleSettings(ServiceSettings):
    mode: str = "serve"
    token: SecretStr = SecretStr("")


@asynccontextmanager
async def open_sample(settings: SampleSettings) -> AsyncIterator[None]:
    log = logging.getLogger("sample")
    async with background() as tasks, serve_health(settings, Readiness()) as health:
        if settings.mode == "never-open":
            log.info("opening")
            await asyncio.Event().wait()
        tasks.start(_forever(), name="forever")
        if settings.mode == "die":
            tasks.start(_die(ValueError("line one\nline two")), name="first")
        if settings.mode == "fail":
            tasks.start(_die(Failure("the port is taken")), name="fail")
        if settings.mode == "name-server-hangs":
            await _resolve_while_the_name_server_hangs()
        if settings.mode == "spans":
            _record_spans()
        if settings.mode == "log":
            _log_lines()
        log.info("serving", extra={"url": health.url})
        try:
            yield
        finally:
            log.info("draining")
            if settings.mode == "never-leave":
                await asyncio.Event().wait()
            log.info("drained")


async def _forever() -> None:
    await asyncio.Event().wait()


async def _die(error: Exception) -> None:
    raise error


async def _resolve_while_the_name_server_hangs() -> None:
    find = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **options: Any) -> Any:
        if host == "hangs.invalid":
            threading.Event().wait()
        return find(host, *args, **options)

    socket.getaddrinfo = getaddrinfo  # type: ignore[assignment]
    loop = asyncio.get_running_loop()
    for _ in range(40):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await loop.getaddrinfo("hangs.invalid", 4222)
                raise AssertionError("it did not hang")
    for _ in range(40):  # files on a network disk hang, too
        with suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.to_thread(threading.Event().wait)
    async with asyncio.timeout(30):
        assert await loop.getaddrinfo("localhost", 4222)
        assert await asyncio.to_thread(lambda: True)


def _record_spans() -> None:
    tracer = trace.get_tracer("sample")
    token = otel_context.attach(otel_context.set_value(TRACE_ID_KEY, TRACE_ID))
    try:
        outer = tracer.start_as_current_span("outer", attributes={"smcp.req_id": "r-1"})
        with outer, suppress(ValueError), tracer.start_as_current_span("inner"):
            logging.getLogger("sample").info("inside a span")
            raise ValueError("the tool's arguments")
    finally:
        otel_context.detach(token)
    with tracer.start_as_current_span("without an id"):
        pass


def _log_lines() -> None:
    with bind_call(req_id="r-1", office="办公室", trace_id=TRACE_ID):
        logging.getLogger("sample").info("ours", extra={"number": 1 << 70, "what": object})
        logging.getLogger("nats.aio.client").warning("from the %s", "library")
        logging.getLogger("engineio.server").info("Received packet %s data %s", "MESSAGE", "the tool's arguments")
    try:
        secret = "the local variable"
        _ = 1 // len(secret[:0])
    except ZeroDivisionError:
        logging.getLogger("sample").exception("divided")


@app.command()
def serve(
    version: Annotated[bool, version_option("smcp-service")] = False,
    check_config: Annotated[bool, check_config_option()] = False,
    health_port: Annotated[int | None, typer.Option()] = None,
) -> None:
    settings = load_settings(SampleSettings, health_port=health_port)
    serve_command(
        "sample",
        settings,
        lambda: open_sample(settings),
        check_config=check_config,
    )


if __name__ == "__main__":
    run_app(app)
