"""The progress notes of one tool call, on their way from its MCP server to the Agent that waits for it (ADR 0045).

A `ProgressThrottle` stands at the call's owner, and one at the Agent's gateway. It knows neither NATS nor Socket.IO.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import orjson
from pydantic import ValidationError

from smcp_bus.bus import Note
from smcp_proto.printable import printable
from smcp_proto.schemas.tools import ToolProgress

EVERY_S: Final = 0.1
"""The least time between two notes of one call."""
AGE_DIVISOR: Final = 40
"""The least time is also this part of the call's age (1/40), so an hour has 320 notes: nats-server lets a Computer send
512 messages to one reply subject."""
MAX_NOTE_BYTES: Final = 8 * 1024
"""A longer note is dropped unread: it has room for the longest text, six bytes for each character."""

_FIELDS: Final = set(ToolProgress.model_fields)


def note_counts() -> dict[str, int]:
    """How many notes were `sent`, were `replaced` by a newer one before, and were `dropped`: malformed, or of a call
    that is over."""
    return {"sent": 0, "replaced": 0, "dropped": 0}


class ProgressThrottle:
    """Forwards the progress of one running call: validated, the newest note only, less often the longer the call runs.

    Args:
        send: is given JSON.
        call: fields that go with each note.
        loop: None: the running one.
    """

    def __init__(
        self,
        send: Note,
        counts: dict[str, int],
        call: Mapping[str, str] = MappingProxyType({}),
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._send: Note | None = send
        self._counts = counts
        self._call = call
        self._loop = loop or asyncio.get_running_loop()
        self._began = self._next_at = self._loop.time()
        self._waiting: ToolProgress | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set_receiver(self, send: Note | None) -> None:
        """Send to the latest requester of a repeated call; None if that one does not want progress."""
        self._send = send

    def close(self) -> None:
        """The call is over."""
        self._send = None
        if self._timer is not None:
            self._timer.cancel()
            self._flush()

    def read(self, data: Mapping[str, object] | bytes) -> None:
        """Validate and forward a note of an MCP server or another process; count and drop a malformed one."""
        try:
            if isinstance(data, bytes):
                note = ToolProgress.model_validate_json(data if len(data) <= MAX_NOTE_BYTES else b"")
            else:  # without fields that might be large
                note = ToolProgress.model_validate({name: data[name] for name in _FIELDS if name in data})
        except ValidationError:
            self._counts["dropped"] += 1
        else:
            self.take(note)

    def take(self, note: ToolProgress) -> None:
        if self._send is None:
            self._counts["dropped"] += 1
            return
        if self._waiting is not None:
            self._counts["replaced"] += 1
        self._waiting = note
        if self._timer is None and self._loop.time() >= self._next_at:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_at, self._flush)

    def _flush(self) -> None:
        self._timer = None
        note, self._waiting = self._waiting, None
        assert note is not None
        if self._send is None:
            self._counts["dropped"] += 1
            return
        now = self._loop.time()
        self._next_at = now + max(EVERY_S, (now - self._began) / AGE_DIVISOR)
        self._counts["sent"] += 1
        fields = note.model_dump(include=_FIELDS, exclude_none=True)
        if note.message is not None:
            fields["message"] = printable(note.message)
        self._send(orjson.dumps({**self._call, **fields}))
