"""The stdio transport: newline-delimited JSON-RPC over the standard streams of a `process`.

The SDK's own transport does not bound its lines, does not expose its process, does not end children that outlive it,
and cannot log what the server writes to standard error.
"""

import asyncio
import codecs
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, SupportsIndex

import anyio
import mcp_types as types
from anyio.abc import ObjectSendStream
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from smcp_bus import exact_json
from smcp_bus.exact_json import SMALL_BYTES
from smcp_computer.mcp import errors
from smcp_computer.mcp.isolation import check_sandbox, launch_of
from smcp_computer.mcp.process import READ_LIMIT, ServerProcess, open_process
from smcp_computer.mcp.sdk_adapter import Streams, Watch
from smcp_computer.mcp.server_log import HANGS, StderrLog
from smcp_computer.redaction import SEARCHED
from smcp_computer.settings import HostSettings
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.config import MCPServerStdioParameters
from smcp_service.lifecycle import set_within

_log = logging.getLogger("smcp_computer.mcp.stdio")

LAST_WORDS_S: Final = 1.0
"""How long what an ended program wrote to standard error is read on: it says why it ended."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A line that was longer than allowed: what is known of it."""

    head: str
    tail: str
    size: int
    """Its bytes in UTF-8."""
    max_values: int | None = None
    """It is not too long, but holds more values than this."""


class Lines:
    """Splits bytes into lines. Of one above `longest` bytes (of UTF-8) only `kept` characters at each end are kept."""

    def __init__(self, decoder: codecs.IncrementalDecoder, longest: int, kept: int = errors.KEPT) -> None:
        self._decoder = decoder
        self._longest = longest
        self._kept = kept
        self._parts: list[str] = []
        self._size = 0
        self._head: str | None = None
        """The beginning of a line that has become too long; only its end is kept beside it."""

    def feed(self, chunk: bytes) -> list[str | Cut]:
        """The lines that `chunk` completes. Raises UnicodeDecodeError."""
        first, *others = self._decoder.decode(chunk).split("\n")
        self._add(first)
        lines = []
        for other in others:
            lines.append(self._end())
            self._add(other)
        return lines

    def _add(self, text: str) -> None:
        self._size += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        self._parts.append(text)
        if self._size <= self._longest:
            return
        whole = "".join(self._parts)
        self._head = whole[: self._kept] if self._head is None else self._head + text[: self._kept - len(self._head)]
        self._parts = [whole[-self._kept :]]

    def _end(self) -> str | Cut:
        text = "".join(self._parts)
        line = text if self._head is None else Cut(self._head, text, self._size)
        self._parts, self._size, self._head = [], 0, None
        return line


async def counted(line: str, max_values: int) -> str | Cut:
    """The line, if it holds at most so many values."""
    text = line.encode("utf-8", "replace")
    try:
        await exact_json.check_cost(text, max_values, "the answer")
    except TooLarge:
        return Cut(line[: errors.KEPT], line[-errors.KEPT :], len(text), max_values)
    return line


def parsed(text: str | Cut, log: StderrLog, max_message: int) -> types.JSONRPCMessage | None:
    """A line of a program: a message, or the error for the request whose answer it is; None: nothing for anybody."""
    if isinstance(text, Cut):
        limit = max_message if text.max_values is None else None
        why = errors.AnswerTooLarge(log.server, limit=limit, size=text.size, max_values=text.max_values)
        log.warning("%s: it is not read", why.what)
        return errors.error_for_cut_answer(text.head, text.tail, why)
    if not text.strip():
        return None
    if (message := errors.message_of(text)) is None:
        log.warning("wrote a line to stdout that is not an MCP message: %.200r", text)
    return message or errors.unreadable(log.server, text)


@asynccontextmanager
async def stdio_transport(
    parameters: MCPServerStdioParameters, host: HostSettings, watch: Watch, log: StderrLog, *, max_message: int
) -> AsyncIterator[Streams]:
    """Run the server's process while the context lasts. If the context is cancelled, the process has less time to end;
    if it hangs, it is killed at once, since it would not react to a request to end.

    Raises ServerFailed: the program cannot be started; CannotRun: this host cannot do what `host` demands. A message
    above `max_message` bytes is let go as it comes, and its request gets an error.
    """
    async with AsyncExitStack() as stack:
        launch = launch_of(parameters, host)
        await check_sandbox(launch, host)
        stdout = _Output(limit=READ_LIMIT)
        process = await stack.enter_async_context(open_process(launch, stdout))
        log.pid = process.pid
        pipes = _Pipes(process, stdout, parameters, log, watch, max_message)
        to_session, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](16)
        broken_off = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pipes.read, to_session)
                tasks.start_soon(pipes.log_errors)
                tasks.start_soon(pipes.watch, to_session)
                try:
                    yield read_stream, pipes
                except BaseException as error:
                    broken_off = isinstance(error, asyncio.CancelledError)
                    raise
                finally:
                    with anyio.CancelScope(shield=True):
                        by_itself = pipes.ended
                        await read_stream.aclose()
                        if watch.why == HANGS:
                            process.kill()
                        await process.stop(hurry=broken_off)
                        await set_within(LAST_WORDS_S, pipes.all_said)
                    if by_itself:
                        log.status = process.status
                    tasks.cancel_scope.cancel()
        finally:
            log.pid = None
            to_session.close()
            read_stream.close()


class _Output(asyncio.StreamReader):
    """What a server writes. `take` may take what comes before it is read."""

    take: Callable[[bytes], bool] | None = None

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        if self.take is None or not self.take(bytes(data)):
            super().feed_data(data)


@dataclass(eq=False)
class _Pipes(ObjectSendStream[SessionMessage]):
    """The standard streams of one run of a program; also the stream that the session writes to."""

    _process: ServerProcess
    _stdout: _Output
    _parameters: MCPServerStdioParameters
    _log: StderrLog
    _watch: Watch
    _max_message: int
    _can_bypass: bool = False
    """Nothing that came is still on its way to the session, and the next byte begins a line."""
    ended: bool = False
    """The server closed its output, or ended."""
    all_said: asyncio.Event = field(default_factory=asyncio.Event)
    """Its standard error was read to the end."""

    def take(self, chunk: bytes) -> bool:
        """Hand over an answer where it comes: the way through the stream's reader costs a turn of the loop."""
        is_line = len(chunk) <= SMALL_BYTES and chunk.find(b"\n") + 1 == len(chunk)
        self._can_bypass = self._can_bypass and is_line and self._watch.answered(chunk)
        return self._can_bypass

    async def read(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        encoding, handler = self._parameters.encoding, self._parameters.encoding_error_handler
        # JSON has no escape `\x`, so with `strict` one message cannot be read, and the server goes on
        decoder = codecs.getincrementaldecoder(encoding)("backslashreplace" if handler == "strict" else handler)
        lines = Lines(decoder, self._max_message + errors.ROOM)
        stdout, max_values = self._stdout, self._watch.max_values
        is_utf8 = codecs.lookup(encoding).name == "utf-8"  # what the parser of bytes reads
        stdout.take = self.take
        try:
            async with to_session:
                while chunk := await stdout.read(READ_LIMIT):
                    self._can_bypass = False
                    for found in lines.feed(chunk):
                        line = found
                        if isinstance(line, str) and len(line) > SMALL_BYTES:
                            line = await counted(line, max_values)
                        if isinstance(line, str) and self._watch.answered(line):
                            continue
                        if (message := parsed(line, self._log, self._max_message)) is not None:
                            await to_session.send(SessionMessage(message))
                        else:
                            await asyncio.sleep(0)  # of lines that are nothing for anybody a chunk may have many
                    self._can_bypass = is_utf8 and chunk.endswith(b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session is gone
        except (UnicodeDecodeError, OSError) as error:
            _log.warning("MCP server %r: its output cannot be read: %s", self._log.server, error)
        finally:
            self.ended = True
            # a server that is busy writing does not see that its input closed, so its output is read to the end
            with suppress(OSError):
                while await stdout.read(READ_LIMIT):
                    pass

    async def send(self, item: SessionMessage) -> None:
        """Write a message. Raises anyio.BrokenResourceError: the process is gone."""
        await self.write(item.message.model_dump_json(by_alias=True, exclude_unset=True))

    async def write(self, line: str) -> None:
        """Write a line. Raises anyio.BrokenResourceError: the process is gone."""
        stdin = self._process.stdin
        if stdin.is_closing():  # a loop may refuse the write with an error of its own
            raise anyio.BrokenResourceError
        try:
            stdin.write(f"{line}\n".encode(self._parameters.encoding, self._parameters.encoding_error_handler))
            await stdin.drain()
        except OSError:
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Its input is closed by `ServerProcess.stop`, which writes what is not written yet."""

    async def log_errors(self) -> None:
        lines = Lines(codecs.getincrementaldecoder("utf-8")("replace"), SEARCHED, kept=SEARCHED)
        with suppress(OSError):
            while chunk := await self._process.stderr.read(65536):
                for line in lines.feed(chunk):
                    self._log.wrote(line.head if isinstance(line, Cut) else line)
                    await asyncio.sleep(0)
        self.all_said.set()

    async def watch(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """End the session when the process has ended, also where somebody else keeps its pipes open."""
        await self._process.watch()
        self.ended = True
        await asyncio.sleep(0.25)  # for `read` to hand over what is in the pipe
        to_session.close()
