"""How often an Agent may ask for what makes MCP servers work (computer.txt, resources chapter, 4.2).

One bucket for a session and one for its office, on the replica that holds the session: an office has one Agent, so no
other replica sees its requests. The buckets stand where sessions and offices stand, and are gone with them.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from smcp_bus.dispatch_types import Call, Handler
from smcp_gateway.offices import Office, Offices
from smcp_gateway.session import Session, Sessions
from smcp_gateway.token_bucket import Rate, TokenBucket
from smcp_proto.errors import RateLimited
from smcp_proto.schemas.resources import SmcpCode

MS: Final = 1000


class ReadLimits:
    """Args:
    per_session, per_office: None: no limit.
    clock: seconds; does not go back.
    """

    def __init__(
        self,
        sessions: Sessions,
        offices: Offices,
        *,
        per_session: Rate | None,
        per_office: Rate | None,
        clock: Callable[[], float],
    ) -> None:
        self._sessions = sessions
        self._offices = offices
        self._per_session = per_session
        self._per_office = per_office
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
        now, caller = self._clock(), call.caller
        session = self._sessions.get(caller.session)
        office = self._offices.get(caller.office) if caller.office is not None else None
        owners = ((session, self._per_session, "session"), (office, self._per_office, "office"))
        buckets = [(_bucket(owner, rate, now), of) for owner, rate, of in owners if owner is not None and rate]
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


def _bucket(owner: Session | Office, rate: Rate, now: float) -> TokenBucket:
    if owner.reads is None:
        owner.reads = TokenBucket(rate, now)
    return owner.reads
