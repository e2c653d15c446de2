"""Bounds what MCP clients cost before their requests are allowed: connections, and the time for a request's headers.

A connection is unauthenticated until one of its requests is allowed (`let_in`); then it counts for the subject of that
request's token. uvicorn has no deadline for headers and no limit per address; `smcp_service.http_limits` does the same
for aiohttp. The bodies of allowed requests have a budget.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, cast

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from smcp_auth.quotas import Holder, Quotas
from smcp_proto.errors import RateLimited
from smcp_service.http_limits import BUSY, HEAD_S

MAX_UNAUTHENTICATED: Final = 512
"""Unauthenticated connections in all. Above it the oldest is closed: a client's first request takes milliseconds."""
SHARE: Final = 4
"""Bodies of the largest size that one subject, or one address without authentication, may have here at a time."""
SHARES: Final = 4
"""How many such shares there are."""
_CONNECTION: Final = "smcp_mcp.connection"


class UnauthenticatedConnections:
    """The connections that have had no allowed request yet.

    Args:
        per_address: how many one address may have; 0: any number.
        counted_as: gives the address or network by which an address is counted; None: not at all, as it is a proxy.
    """

    def __init__(self, per_address: int, counted_as: Callable[[str], str | None]) -> None:
        self._per_address = per_address
        self._counted_as = counted_as
        self._oldest_first: dict[LimitedProtocol, str | None] = {}
        self._by_address: Counter[str] = Counter()

    def enter(self, connection: "LimitedProtocol", address: str) -> bool:
        """Whether the connection may stay. If there are too many in all, the oldest is closed."""
        counted = self._counted_as(address)
        if counted is not None:
            if 0 < self._per_address <= self._by_address[counted]:
                return False
            self._by_address[counted] += 1
        if len(self._oldest_first) >= MAX_UNAUTHENTICATED:
            next(iter(self._oldest_first)).abort()
        self._oldest_first[connection] = counted
        return True

    def is_proxy(self, address: str) -> bool:
        return self._counted_as(address) is None

    def leave(self, connection: "LimitedProtocol") -> None:
        """The connection has had an allowed request, or is closed. Idempotent."""
        counted = self._oldest_first.pop(connection, None)
        if counted is not None:
            self._by_address[counted] -= 1
            if not self._by_address[counted]:
                del self._by_address[counted]


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol of one connection, with a deadline whenever no request is being answered."""

    def __init__(self, unauthenticated: UnauthenticatedConnections, **given: Any) -> None:
        super().__init__(**given)
        self.app_state = {**self.app_state, _CONNECTION: self}  # each request's scope has it, for `let_in`
        self._unauthenticated = unauthenticated
        self._counted_for = ExitStack()
        """Closed when the connection no longer counts for its subject."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self._unauthenticated.enter(self, self.client[0] if self.client else ""):
            self._watch()
        else:
            transport.write(BUSY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unauthenticated.leave(self)
        self._counted_for.close()
        self._unwatch()
        super().connection_lost(exc)

    def let_in(self, quotas: Quotas, holder: Holder) -> bool:
        self._unauthenticated.leave(self)
        self._counted_for.close()
        if self._unauthenticated.is_proxy(self.client[0] if self.client else ""):
            return False
        try:
            quotas.connected(holder)
        except RateLimited:
            # uvicorn closes the connection as if the client had sent this header
            self.scope["headers"] = [*self.scope["headers"], (b"connection", b"close")]
            return False
        self._counted_for.callback(quotas.disconnected, holder)
        return True

    def abort(self) -> None:
        self._unauthenticated.leave(self)
        self._unwatch()
        self.transport.abort()

    def _watch(self) -> None:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request, whatever its type says
        if cycle is not None and not cycle.response_complete:
            self._unwatch()
        elif self._deadline is None and not self.transport.is_closing():
            # not renewed by what comes until the next request begins
            self._deadline = self.loop.call_later(HEAD_S, self.abort)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def let_in(scope: Scope, quotas: Quotas, holder: Holder) -> bool:
    """Call this for an allowed request. Its connection then counts for the request's subject, until it has a request of
    another subject or ends.

    Returns whether it counts. A proxy's connection does not, since it carries many subjects. A connection above the
    quota `sockets` is closed after the answer; refusing its request would lose calls behind an unknown proxy.
    """
    connection = scope.get("state", {}).get(_CONNECTION)
    return isinstance(connection, LimitedProtocol) and connection.let_in(quotas, holder)


class BodyBudget:
    """The bytes of request bodies that are kept, from when they come until their requests are answered.

    Args:
        largest: bytes of the largest request.
    """

    def __init__(self, largest: int) -> None:
        self._share = SHARE * largest
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, subject: str) -> Iterator[Callable[[int], None]]:
        """While the body runs, the function that it is given adds bytes to what the subject has.

        That raises RateLimited: its share, or what all have together, would be exceeded.
        """
        taken = 0

        def hold(size: int) -> None:
            nonlocal taken
            for held, limit, whose in (
                (self._held[subject], self._share, "your"),
                (self._held.total(), SHARES * self._share, "all"),
            ):
                if held + size > limit:
                    raise RateLimited(
                        f"{whose} unanswered requests would have more than {limit} bytes: send fewer at a time",
                        details={"limit": limit, "retry_after_s": 1},
                    )
            self._held[subject] += size
            taken += size

        try:
            yield hold
        finally:
            self._held[subject] -= taken
            if not self._held[subject]:
                del self._held[subject]
