"""JSON as it goes over this package's sockets.

python-socketio can replace its JSON module process-wide or per client's packet class; the latter leaves other
clients in the same process alone. What the default does not do: refuse NaN (no JSON, so the other side would take
the whole packet for garbage), refuse lone surrogates for the same reason, and say that a packet is too large
before the server cuts the connection for it.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from socketio.packet import Packet

from smcp_agent.errors import Malformed, TooLarge

ENVELOPE_BYTES: Final = 64
"""Round the JSON of a message: the types of both packets, the namespace, an id."""
HEADROOM: Final = 64 * 1024
"""A gateway takes messages of so many bytes above its limit (`SMCP_MAX_PAYLOAD`), to answer them with 413."""


class JsonText(str):
    """JSON already: it goes into a packet as it is."""

    __slots__ = ()


class WireJson:
    """What `socketio.packet.Packet` takes as its `json`.

    Args:
        max_bytes: of the JSON of a packet, until the server has said what it takes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._told = max_bytes

    def limit(self, max_payload: int) -> None:
        """From now on hold to what the server takes: messages of `max_payload` bytes. It cuts off who sends more."""
        self._max_bytes = max_payload - ENVELOPE_BYTES
        self._told = max_payload - HEADROOM if max_payload > HEADROOM else self._max_bytes

    def dumps(self, value: Any, **options: Any) -> str:
        """The JSON of a packet.

        Raises:
            Malformed: `value` cannot be said in JSON; `details.field` names what in it cannot, where that is one thing.
            TooLarge: it is above the limit.
        """
        try:
            text = _dumped(value, options)
            size = len(text) if text.isascii() else len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise _malformed(value, error) from error
        if size > self._max_bytes:
            raise TooLarge(
                f"the request has {size} bytes, the limit is {self._told}",
                details={"limit": self._told, "size": size},
            )
        return text

    def loads(self, text: str, **options: Any) -> Any:
        """The value of a JSON text. Raises ValueError: it is none."""
        return json.loads(text, **options)


def _dumped(value: Any, options: dict[str, Any]) -> str:
    match value:
        case [JsonText() as text]:
            return f"[{text}]"
        case _:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)


def _malformed(value: Any, error: Exception) -> Malformed:
    data = value[-1] if isinstance(value, list) and len(value) > 1 else value  # of an event: behind its name
    fault = None
    with suppress(RecursionError):  # what is nested too deeply, or holds itself
        fault = next(_faults(data, ()), None)
    if fault is None:
        return Malformed(f"this cannot be said in JSON: {error}")
    field, what = ".".join(fault[0]), f"{fault[1]} cannot be said in JSON"
    return Malformed(f"{field or 'this'}: {what}", details={"field": field, "reason": what})


def _faults(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What JSON cannot say: where it stands, and what it is."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, tuple) or any(_faults(key, ())):
                yield path, "such a key"
            yield from _faults(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _faults(inner, (*path, str(number)))
    elif isinstance(value, str) and any("\ud800" <= each <= "\udfff" for each in value):
        yield path, "half of a surrogate pair"
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, "a number that is not finite"
    elif value is not None and not isinstance(value, str | int | float):
        yield path, f"an object of type {type(value).__name__}"


def packet_class(wire_json: WireJson) -> type[Packet]:
    """A Socket.IO packet with this JSON, in which bytes are refused instead of attached."""
    return type("WirePacket", (Packet,), {"json": wire_json, "uses_binary_events": False})
