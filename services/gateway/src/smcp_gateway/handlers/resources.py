"""The rate limit of requests for resources, and the updates that Socket.IO Computers announce."""

import math
from collections.abc import Callable
from typing import Any, Final

from smcp_bus import exact_json
from smcp_bus.dispatch import Call, Handler
from smcp_bus.outbox import UPDATED, Key
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_proto.errors import Malformed, RateLimited, SmcpCode
from smcp_proto.schemas import ResourceUpdatedNotification

MOST_OFFICES: Final = 20_000
"""Above it the least recently used bucket is dropped."""
NEARLY: Final = 1 - 1e-9
"""A whole token, despite rounding errors."""


class ReadLimits:
    """Limits the requests that make MCP servers work (computer.txt, resources chapter, 4.2).

    There is one token bucket for each office. An office has one Agent, whose requests come to one replica, so this
    bounds the session and the room. An Agent that joins or connects again gets no extra tokens.

    Args:
        per_s: tokens a second; 0: no limit.
        burst: capacity of a bucket.
        clock: monotonic, in seconds.
    """

    def __init__(self, *, per_s: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._offices: dict[str, tuple[float, float]] = {}
        """(tokens, at that time), in order of the last use. A full bucket is not kept."""

    def __len__(self) -> int:
        return len(self._offices)

    def before(self, handler: Handler) -> Handler:
        """Put the limit before the handler of a metered event."""

        async def limited(request: Any, call: Call) -> Any:
            if self._per_s and call.caller.office is not None:
                self.take(call.caller.office)
            return await handler(request, call)

        return limited

    def take(self, office: str) -> None:
        """Count a request.

        Raises:
            RateLimited: above the limit, and not counted (`details.retry_after_s`).
        """
        now = self._clock()
        tokens = self._tokens(office, now)
        is_taken = tokens >= NEARLY
        self._offices.pop(office, None)
        self._offices[office] = max(0.0, tokens - is_taken), now
        oldest = next(iter(self._offices))
        if len(self._offices) > MOST_OFFICES or self._tokens(oldest, now) >= self._burst:
            del self._offices[oldest]
        if not is_taken:
            wait = math.ceil((1 - tokens) / self._per_s * 1000) / 1000
            details = {"smcp_code": SmcpCode.RATE_LIMITED.value, "retry_after_s": wait}
            raise RateLimited("too many requests for resources in this office", details=details)

    def _tokens(self, office: str, now: float) -> float:
        tokens, at = self._offices.get(office, (float(self._burst), now))
        return min(float(self._burst), tokens + (now - at) * self._per_s)


async def resource_updated(request: ResourceUpdatedNotification, call: Call, *, computers: ComputerTable) -> None:
    """Pass `notify:resources/updated` of a Computer on, once for each subscribed Agent, with that Agent's name.

    Raises:
        Malformed: it names no Computer.
    """
    if request.computerId is None:
        raise Malformed("computerId: is missing", details={"field": "computerId"})
    assert call.caller.office is not None
    owned = computers.of(call.caller.session, call.caller.office)
    if owned is None:
        return  # it has just left
    server, uri = request.serverId, request.payload.params.uri
    for agent in owned.subscriptions.agents(server, uri):
        if request.agent in (None, agent):
            owned.updates.put(Key(UPDATED, server, uri, agent), exact_json.written({**call.payload, "agent": agent}))
