"""JSON as it goes over this package's sockets.

python-socketio can replace its JSON module process-wide or per client's packet class; the latter leaves other
clients in the same process alone. What the default does not do: refuse NaN (no JSON, so the other side would take
the whole packet for garbage), refuse lone surrogates for the same reason, and say that a packet is too large
before the server cuts the connection for it.
"""

import json
from typing import Any

from socketio.packet import Packet

from smcp_agent.errors import Malformed, TooLarge


class WireJson:
    """What `socketio.packet.Packet` takes as its `json`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def dumps(self, value: Any, **options: Any) -> str:
        """The JSON of a packet.

        Raises:
            Malformed: `value` cannot be said in JSON.
            TooLarge: it is above the limit.
        """
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
            size = len(text) if text.isascii() else len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise Malformed(f"this cannot be said in JSON: {error}") from error
        if size > self._max_bytes:
            raise TooLarge(
                f"the request has {size} bytes, the limit is {self._max_bytes}",
                details={"limit": self._max_bytes, "size": size},
            )
        return text

    def loads(self, text: str, **options: Any) -> Any:
        return json.loads(text, **options)


def packet_class(max_bytes: int) -> type[Packet]:
    """A Socket.IO packet of at most `max_bytes` of JSON, in which bytes are refused instead of attached."""
    return type("WirePacket", (Packet,), {"json": WireJson(max_bytes), "uses_binary_events": False})
