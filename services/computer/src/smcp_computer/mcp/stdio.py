"""The stdio transport: newline-delimited JSON-RPC over the standard streams of a child process.

The SDK's own transport does not tell its process, nor end children that outlive it, and it cannot log what the server
writes to its standard error. This one is what the SDK takes for a transport: an async context manager that
gives a pair of streams.
"""

import asyncio
import codecs
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from smcp_computer.mcp.lines import Cut, Lines
from smcp_computer.mcp.parsing import parsed
from smcp_computer.mcp.process import READ_LIMIT, ServerProcess
from smcp_computer.mcp.stderr_log import MAX_LINE, StderrLog
from smcp_computer.mcp.streams import Streams
from smcp_computer.mcp.unread import ROOM
from smcp_proto.schemas.config import MCPServerStdioParameters

_log = logging.getLogger("smcp_computer.mcp.stdio")

FLUSH_S: Final = 0.5
GATHERED_BYTES: Final = 64 * 1024
"""A write that has so many takes no further message."""


@asynccontextmanager
async def stdio_transport(
    server: str, parameters: MCPServerStdioParameters, errors: StderrLog, *, max_message: int
) -> AsyncIterator[Streams]:
    """Run the server's process for as long as the context lasts; where that is cancelled, it is ended in a hurry.

    Args:
        server: the server's name, for the log.
        errors: told what it writes to its standard error, and how it ends by itself.
        max_message: bytes that what the server sends in one message may have. A longer one is let go as it comes, and
            who waits for it gets an error.

    Raises:
        StartFailed: the program cannot be started.
    """
    process = await ServerProcess.start(
        parameters.command,
        parameters.args,
        env=get_default_environment() | (parameters.env or {}),
        cwd=parameters.cwd,
    )
    to_session, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    write_stream, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    pipes = _Pipes(server, process, parameters, errors, max_message)
    flushed = asyncio.Event()
    broken_off = False
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipes.read, to_session)
            tasks.start_soon(pipes.write, from_session, flushed)
            tasks.start_soon(pipes.log_errors)
            tasks.start_soon(pipes.watch_exit, to_session)
            try:
                yield read_stream, write_stream
            except asyncio.CancelledError:
                broken_off = True
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    by_itself = pipes.ended
                    await read_stream.aclose()
                    await write_stream.aclose()
                    with anyio.move_on_after(0 if broken_off else FLUSH_S):
                        await flushed.wait()
                    await process.stop(hurry=broken_off)
                if by_itself:
                    errors.died(process.status)
                tasks.cancel_scope.cancel()
    finally:
        process.kill()
        for stream in (to_session, read_stream, write_stream, from_session):
            stream.close()


class _Pipes:
    """The tasks between a process's pipes and the session's streams."""

    def __init__(
        self,
        server: str,
        process: ServerProcess,
        parameters: MCPServerStdioParameters,
        log: StderrLog,
        max_message: int,
    ) -> None:
        self._server = server
        self._process = process
        self._encoding = parameters.encoding
        self._errors = parameters.encoding_error_handler
        self._log = log
        self._max_message = max_message
        self.ended = False
        """The server closed its output, or ended."""

    async def read(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Messages from the server, until its output ends."""
        lines = Lines(codecs.getincrementaldecoder(self._encoding)(self._errors), self._max_message + ROOM)
        try:
            async with to_session:
                while chunk := await self._process.stdout.read(READ_LIMIT):
                    for line in lines.feed(chunk):
                        if (message := parsed(line, self._log, self._max_message)) is not None:
                            await to_session.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session is gone
        except (UnicodeDecodeError, OSError) as error:
            _log.warning("MCP server %r: its output cannot be read: %s", self._server, error)
        finally:
            self.ended = True
            # a server that is busy writing does not see that its input closed, so its output is read to the end
            with suppress(OSError):
                while await self._process.stdout.read(READ_LIMIT):
                    pass

    async def write(self, from_session: MemoryObjectReceiveStream[SessionMessage], flushed: asyncio.Event) -> None:
        """Messages to the server."""
        stdin = self._process.stdin
        try:
            async with from_session:
                async for item in from_session:
                    if stdin.is_closing():
                        break  # the process is gone; a loop may refuse the write with an error of its own
                    data = self._line(item)
                    with suppress(anyio.WouldBlock, anyio.EndOfStream):
                        while len(data) < GATHERED_BYTES:  # what others want to send now goes in the same write
                            data += self._line(from_session.receive_nowait())
                    stdin.write(data)
                    await stdin.drain()
        except OSError:
            pass  # the process is gone; `read` and `watch_exit` see that too
        finally:
            flushed.set()

    def _line(self, item: SessionMessage) -> bytes:
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
        return text.encode(self._encoding, self._errors)

    async def log_errors(self) -> None:
        """What the server writes to its standard error goes to the log."""
        lines = Lines(codecs.getincrementaldecoder("utf-8")("replace"), MAX_LINE)
        with suppress(OSError):
            while chunk := await self._process.stderr.read(65536):
                for line in lines.feed(chunk):
                    self._log.wrote(line.head if isinstance(line, Cut) else line)

    async def watch_exit(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """End the session when the process has ended, also where a child of it keeps its pipes open."""
        await self._process.wait_exited()
        self.ended = True
        self._process.kill()
        await asyncio.sleep(0.25)  # for `read` to hand over what is in the pipe
        to_session.close()
