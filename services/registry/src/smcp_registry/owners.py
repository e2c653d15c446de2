"""Asking an owner process whether it, or one of its sessions, is still there."""

import asyncio
from typing import Final

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Bus
from smcp_bus.errors import ConnectionLost, NoResponder, NotConnected, RequestTimedOut, TransferFailed
from smcp_bus.headers import ERROR
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion
from smcp_bus.tracing import sending
from smcp_proto.errors import Unavailable
from smcp_registry.admission import Owner
from smcp_registry.connection import ConnectionWatch
from smcp_registry.leases import Leases
from smcp_registry.records import MemberRecord

ASK_AGAIN_S: Final = 0.1
"""One "no responder" proves nothing: in a cluster a subscription is known everywhere only after a moment."""
SETTLE_S: Final = 2.0
"""After NATS came back, or a node of it left, owners may take this long to be back too (seconds); no longer than a
lease."""
PATIENCE_S: Final = 1.0
"""How long an owner may take to answer (seconds); at most half a lease."""


class Owners:
    """Asks `alive`.

    Args:
        lease_s: bounds the two waits above, in seconds; 0 for `settle_s` believes the second "no responder" at once.
    """

    def __init__(
        self,
        bus: Bus,
        connection: ConnectionWatch,
        leases: Leases,
        *,
        patience_s: float = PATIENCE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._bus = bus
        self._connection = connection
        self._leases = leases
        self._patience_s = patience_s
        self._settle_s = settle_s
        self._loop = asyncio.get_running_loop()

    async def ask(
        self,
        credential: str,
        process: str,
        session: str | None,
        *,
        incarnation: str | None = None,
        seat: MemberRecord | None = None,
    ) -> Owner:
        """ALIVE or GONE; SILENT where an owner does not answer in time and its lease lives.

        Args:
            session: the session in question; None asks after the process alone.
            incarnation: of the session's claim; one that it no longer means is GONE.
            seat: the session's record; a session that is a member elsewhere alone is GONE.

        Raises:
            Unavailable: it cannot be asked now, since NATS is away.
        """
        subject = subjects.hosts(credential, process, "alive")
        question = AliveQuestion(session=session, incarnation=incarnation)
        if seat is not None:
            question = question.model_copy(update={"office": seat.office, "role": seat.role, "name": seat.name})
        unheard = False
        while True:
            try:
                with sending(subject) as headers:
                    body = question.model_dump_json(exclude_none=True).encode()
                    reply = await self._bus.request(subject, body, timeout=self._patience_s, headers=headers)
            except NoResponder:
                settled_for = self._settled_for()
                if unheard and settled_for >= self._settle_s:
                    return Owner.GONE
                unheard = True
                await asyncio.sleep(max(ASK_AGAIN_S, self._settle_s - settled_for))
                continue
            except (RequestTimedOut, TransferFailed):
                return Owner.SILENT if await self._leases.lives(credential, process) else Owner.GONE
            except (NotConnected, ConnectionLost) as error:
                raise Unavailable("the present owner cannot be asked now") from error
            if ERROR in reply.headers:
                return Owner.ALIVE  # whatever it says: somebody is there to say it
            try:
                answer = AliveAnswer.model_validate_json(reply.body)
            except ValidationError:
                return Owner.ALIVE
            return Owner.ALIVE if answer.session else Owner.GONE

    def _settled_for(self) -> float:
        """Seconds since when neither the own connection broke nor a node of NATS left."""
        left_at, up_for = self._bus.node_left_at, self._connection.up_for()
        return up_for if left_at is None else min(up_for, self._loop.time() - left_at)
