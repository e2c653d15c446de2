"""How often an Agent may ask for what makes MCP servers work (computer.txt, resources chapter, 4.2).

One bucket for a session, one for its name in its office, and one for the office, on the replica that holds the session:
an office has one Agent, so no other replica sees its requests. Those of name and office outlive the session: who leaves
and joins, or connects anew, has what it had.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from smcp_bus.dispatch import Call, Caller, Handler
from smcp_gateway.limits.kept_buckets import KeptBuckets
from smcp_gateway.limits.token_bucket import Rate, TokenBucket
from smcp_gateway.sockets.session import Sessions
from smcp_proto.errors import RateLimited
from smcp_proto.schemas.resources import SmcpCode

MS: Final = 1000


class ReadLimits:
    """Args:
    per_session: also for all sessions of one name in an office, one after the other; None: no limit.
    per_office: None: no limit.
    clock: seconds; does not go back.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        per_session: Rate | None,
        per_office: Rate | None,
        clock: Callable[[], float],
    ) -> None:
        self._sessions = sessions
        self._per_session = per_session
        self._names = None if per_session is None else KeptBuckets(per_session)
        self._offices = None if per_office is None else KeptBuckets(per_office)
        self._clock = clock

    def before(self, handler: Handler) -> Handler:
        """The same handler, behind the limits: what they refuse does not come to it."""

        async def limited(request: Any, call: Call) -> Any:
            if call.row.metered:
                self.take(call)
            return await handler(request, call)

        return limited

    def take(self, call: Call) -> None:
        """Count a request.

        Raises:
            RateLimited: it is one too many (`details.retry_after_s`: when there is room for one, in seconds); it is
                not counted.
        """
        now = self._clock()
        buckets = list(self._buckets(call.caller, now))
        wait, of = max(((bucket.wait(now), of) for bucket, of in buckets), default=(0.0, ""))
        if wait > 0:
            raise RateLimited(
                f"too many requests for resources in this {of}",
                details={
                    "smcp_code": SmcpCode.RATE_LIMITED.value,
                    "retry_after_s": math.ceil(wait * MS) / MS,
                    "limit_of": of,
                },
            )
        for bucket, _ in buckets:
            bucket.take(now)

    def _buckets(self, caller: Caller, now: float) -> Iterator[tuple[TokenBucket, str]]:
        """Those that count for a caller, and what of."""
        session = self._sessions.get(caller.session)
        if session is not None and self._per_session is not None:
            if session.reads is None:
                session.reads = TokenBucket(self._per_session, now)
            yield session.reads, "session"
        if caller.office is None:
            return
        if self._names is not None:
            yield self._names.of((caller.office, caller.name), now), "session"
        if self._offices is not None:
            yield self._offices.of(caller.office, now), "office"
