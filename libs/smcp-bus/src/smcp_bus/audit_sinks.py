"""The audit trail of a process, opened as its settings say, and where its records go: JetStream's stream, a file in
place of it, or a registry, which writes for Computers on NATS.

Several processes of one machine may write one file: each write is made under a lock, which also finds out that another
process has begun a new file. A record that did not fit (a full disk) is taken out again, so that no line is half.
"""

import asyncio
import fcntl
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import orjson

from smcp_bus.audit import STREAM, Batch, Sink, Trail
from smcp_bus.bus import BusError, ConnectionState, describe
from smcp_bus.nats.bus import Bus
from smcp_bus.operations import measure_audit
from smcp_bus.registry_client import RegistryClient
from smcp_proto.errors import SmcpError
from smcp_service.metrics import Metrics
from smcp_service.settings import ServiceSettings

MESSAGE_ID: Final = "Nats-Msg-Id"
"""JetStream stores a message with a known id once."""
HEAD_BYTES: Final = 256
"""More than the headers of a message have."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a file; then it becomes `FILE.1` and a new one is begun. About 100,000 records."""
KEPT: Final = 3
"""Former files: with the one that is written 256 MiB, as much as the stream keeps by default."""


class StreamSink(Sink):
    """Publishes records for JetStream's stream, on the bus's own connection; the answers arrive at one subscription.

    The records of one round of the event loop are one message, since an answer costs more than a record, and stay
    together when they are sent again: JetStream knows the message by its id.
    """

    def __init__(self, bus: Bus, trail: Trail) -> None:
        self._bus = bus
        self._trail = trail
        # Nobody else who may write into this process's inbox can guess where its answers arrive.
        self._reply = f"{bus.inbox_prefix}.{bus.process}.audit.{secrets.token_hex(8)}."
        # Nor the ids: who published one first would have our record dropped as its duplicate.
        self._id = f"{MESSAGE_ID}: {secrets.token_hex(16)}-".encode()
        self._subscription = self._bus.attach(f"{self._reply}*", "", self._answered)
        self._stop = bus.watch(self._on_connection)

    @property
    def most_bytes(self) -> int:  # type: ignore[override] # it may change with the server
        return min(Sink.most_bytes, self._bus.max_payload - HEAD_BYTES)

    def later(self, leave: Callable[[], None]) -> None:
        self._bus.send_later(leave)

    def send(self, batch: Batch) -> None:
        head = b"NATS/1.0\r\n%b%d\r\n\r\n" % (self._id, batch.number)
        if not self._bus.connected:
            self._trail.refused(batch.number, "there is no connection to NATS")
        elif len(head) + batch.size > self._bus.max_payload:
            self._trail.refused(batch.number, "it is too large")
        else:
            self._bus.send(batch.subject, f"{self._reply}{batch.number}", head, batch.body)

    def close(self) -> None:
        self._stop()
        self._bus.unsubscribe_at_server(self._subscription)
        self._bus.detach(self._subscription)

    def _answered(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        number = int(subject[len(self._reply) :])
        if not head and b'"error"' not in body:
            self._trail.taken(number)
        else:
            self._trail.refused(number, f"NATS has no stream {STREAM}" if head else _refusal(body))

    def _on_connection(self, connection: ConnectionState) -> None:
        if connection is ConnectionState.UP:
            self._trail.send_again()


class ApprovalSink(Sink):
    """Where the approvals of a Computer on NATS go (`smcp_bus.audit.Sink`): it may not write to the stream itself."""

    def __init__(self, registry: RegistryClient, office: str, computer: str, trail: Trail) -> None:
        self._registry = registry
        self._seat = office, computer
        self._trail = trail
        self._asking: set[asyncio.Task[None]] = set()

    def send(self, batch: Batch) -> None:
        task = asyncio.create_task(self._ask(batch), name="approval")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def close(self) -> None:
        for task in self._asking:
            task.cancel()

    async def _ask(self, batch: Batch) -> None:
        try:
            await self._registry.record_approval(*self._seat, batch.body)
        except (SmcpError, BusError) as error:
            self._trail.refused(batch.number, f"a registry: {describe(error)}")
        else:
            self._trail.taken(batch.number)


class FileSink(Sink):
    def __init__(self, path: Path, trail: Trail, *, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        self._path = path
        self._trail = trail
        self._max_bytes = max_bytes
        self._kept = kept
        self._file: int | None = None

    def send(self, batch: Batch) -> None:
        try:
            with self._locked() as file:
                _append(file, batch.body + b"\n")
        except OSError as error:
            self._trail.refused(batch.number, f"{self._path}: {error.strerror or error}")
        else:
            self._trail.taken(batch.number)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        while True:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            file = self._file
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                if _is(file, self._path):
                    if os.fstat(file).st_size < self._max_bytes:
                        yield file
                        return
                    for number in range(self._kept, 0, -1):
                        with suppress(FileNotFoundError):
                            former(self._path, number - 1).replace(former(self._path, number))
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)
            self.close()


def former(path: Path, number: int) -> Path:
    """The file before it, and so on; 0: itself."""
    return path.with_name(f"{path.name}.{number}") if number else path


@asynccontextmanager
async def open_trail(
    logger: str,
    settings: ServiceSettings,
    bus: Bus | None = None,
    metrics: Metrics | None = None,
    *,
    content: bool = False,
    name: str = "",
    sink: Callable[[Trail], Sink] | None = None,
) -> AsyncIterator[Trail]:
    """The trail of a process while the body runs; then what waits is given a moment.

    Args:
        logger: the name of the logger of its events.
        bus: None: records go to a file, or nowhere.
        name: of the process, where there is no bus.
        sink: in place of the stream.
    """
    path, mode = settings.audit_file, settings.audit
    writer = f"{bus.credential}/{bus.process}" if bus is not None else f"{name}/{uuid4().hex}"
    open_sink: Callable[[Trail], Sink] | None = None
    if mode != "off" and path is not None:
        open_sink = lambda trail: FileSink(path, trail)  # noqa: E731 -- one of two
    elif mode != "off" and bus is not None:
        open_sink = sink or (lambda trail: StreamSink(bus, trail))
    trail = Trail(
        logging.getLogger(logger), writer=writer, open_sink=open_sink, required=mode == "required", content=content
    )
    if metrics is not None:
        measure_audit(metrics, trail)
    resending = asyncio.create_task(trail.run(), name="audit trail")
    try:
        yield trail
    finally:
        await trail.close()
        resending.cancel()
        await asyncio.wait([resending])


def _refusal(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["description"])
    except (ValueError, KeyError, TypeError):
        return "NATS does not take it"


def _append(file: int, line: bytes) -> None:
    before = os.fstat(file).st_size
    if before and os.pread(file, 1, before - 1) != b"\n":
        line = b"\n" + line  # a process was killed in the middle of its record
    written, full = 0, OSError(0, "no space for a whole record")
    try:
        written = os.write(file, line)
    except OSError as error:
        full = error
    if written < len(line):
        with suppress(OSError):
            os.ftruncate(file, before)
        raise full


def _is(file: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False
