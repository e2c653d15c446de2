"""Bodies that do not fit one message: the plan of their chunks, and the side that has them.

The first message carries chunk 0 and says in its headers how large the whole is. The receiver asks for the others,
each by its index, and ends with `done`:

    sender   → receiver   Smcp-Size: 1300000, Smcp-Chunks: 3       chunk 0; its reply subject reaches the sender
    receiver → sender     Smcp-Chunk: 1   (reply: a place of the receiver)
    sender   → receiver   Smcp-Chunk: 1                            chunk 1
    …
    receiver → sender     Smcp-Chunk: done

For a request the sender is reached by the request's own reply subject, for a reply by the reply subject that the
reply carries. No address stands in a header, so nats-server's permissions bind all of it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from smcp_bus.bus import Headers, Progress
from smcp_bus.errors import BodyTooLarge, TransferFailed

SIZE: Final = "Smcp-Size"
"""Bytes of the whole body; only on the first message of a chunked one."""
CHUNKS: Final = "Smcp-Chunks"
"""How many chunks it has."""
CHUNK: Final = "Smcp-Chunk"
"""In a pull the index that is asked for, `done`, or `here`; in its answer the index that comes, or `gone`."""

MAX_CHUNK: Final = 512 * 1024
MAX_CHUNKS: Final = 8192
"""More than any body within the limits needs: a peer cannot make us ask for bytes one by one."""

DONE: Final = b"done"
PROBE: Final = b"here"
"""A pull that is not answered: only to hear from nats-server whether anybody is there."""
GONE: Final = b"gone"

_CHUNK_HEAD: Final = b"NATS/1.0\r\nSmcp-Chunk: "
_NUMBER: Final = re.compile(r"[0-9]{1,12}")


Send = Callable[[str, str, bytes, bytes | memoryview], None]
"""Sends subject, reply subject, header block and body; drops them while there is no connection."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a body is cut: `count` chunks of `chunk` bytes, the last one shorter or as long."""

    total: int
    count: int
    chunk: int

    def length(self, index: int) -> int:
        """Bytes of the chunk at `index`, which counts from 0."""
        return self.chunk if index < self.count - 1 else self.total - self.chunk * (self.count - 1)


def plan_for(total: int, chunk: int) -> Plan:
    """The plan of a body of `total` bytes, in chunks of `chunk` bytes."""
    return Plan(total, -(-total // chunk), chunk)


def announced_plan(headers: Headers, first: int, limit: int) -> Plan:
    """The plan that a first message of `first` bytes announces, checked: nothing is believed that does not add up.

    Raises:
        BodyTooLarge: the whole is above `limit`.
        TransferFailed: the numbers are none, or contradict each other.
    """
    total_text, count_text = headers.get(SIZE, ""), headers.get(CHUNKS, "")
    if not (_NUMBER.fullmatch(total_text) and _NUMBER.fullmatch(count_text)):
        raise TransferFailed("a chunked body without its size")
    total, count = int(total_text), int(count_text)
    if total > limit:
        raise BodyTooLarge(total, limit)
    if not 0 < first < total or count > MAX_CHUNKS or plan_for(total, first).count != count:
        raise TransferFailed("a chunked body whose sizes contradict each other")
    return Plan(total, count, first)


def is_chunk(head: bytes) -> bool:
    """Whether this is a pull or the answer to one."""
    return head.startswith(_CHUNK_HEAD)


def chunk_head(index: bytes) -> bytes:
    """The header block that asks for a chunk, or brings it: `index` in digits, or one of the words above."""
    return b"%b%b\r\n\r\n" % (_CHUNK_HEAD, index)


def chunk_index(head: bytes) -> bytes:
    """What stands in `Smcp-Chunk`."""
    return head[len(_CHUNK_HEAD) :].partition(b"\r")[0]


def index_of(text: bytes) -> int | None:
    """None where it is not the index of a chunk."""
    return int(text) if len(text) < 6 and text.isdigit() else None


class Outgoing:
    """A body that is pulled from us."""

    def __init__(self, send: Send, body: bytes, chunk: int) -> None:
        self._send = send
        self._body = memoryview(body)
        self.plan = plan_for(len(body), chunk)
        self.done = False
        self.progress: Progress | None = None

    @property
    def first(self) -> memoryview:
        """The first chunk, which goes with the message that announces the others."""
        return self._body[: self.plan.chunk]

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the first chunk."""
        return {SIZE: str(self.plan.total), CHUNKS: str(self.plan.count)}

    def answer(self, reply: str, head: bytes) -> None:
        """Send the chunk that a pull asks for; asked twice, it is sent twice."""
        asked = chunk_index(head)
        if asked == DONE:
            if self.progress is not None and not self.done:
                self.progress.request_delivered()
            self.done = True
            return
        if self.progress is not None and not self.done:
            self.progress.request_moved()
        index = index_of(asked)
        if reply and index is not None and index < self.plan.count:
            start = index * self.plan.chunk
            self._send(reply, "", head, self._body[start : start + self.plan.chunk])
