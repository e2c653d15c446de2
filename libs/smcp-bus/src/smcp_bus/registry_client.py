"""The client of the registries, for gateways and native Computers, and the lease that it keeps for their process.

A request without an answer is asked again beside the first, and the first answer counts: NATS picks a registry at
random each time, and one may be suspended. Joins, leaves and renewals are idempotent by their claim, notifications by
an id. Where the connection to NATS breaks, the `BusError` comes through.
"""

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from smcp_bus import registry_contract as contract
from smcp_bus import subjects
from smcp_bus.audit import ANSWER_S
from smcp_bus.bus import NO_HEADERS, BusError, Headers, NoResponder, Reply, RequestTimedOut, describe
from smcp_bus.callers import SeatKey
from smcp_bus.headers import AFTER, CLAIM, ERROR, NOTIFICATION_ID, PROOF, REQ_ID, SUBJECT
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_contract import Claim, Joined, LeaseState
from smcp_bus.tracing import sending
from smcp_proto.backoff import Backoff, jittered
from smcp_proto.catalog import ROOM_S
from smcp_proto.errors import ErrorBody, Internal, NotAllowed, SmcpError, Unavailable, error_of
from smcp_proto.schemas import ListRoomRet
from smcp_proto.schemas.rooms import RESTARTS
from smcp_service.lifecycle import set_within

Model = TypeVar("Model", bound=BaseModel)

CONFIRM_S: Final = ROOM_S / 4
"""Two confirmations fit into the 5 s that a call waits for a Computer which is being confirmed."""
AGAIN_S: Final = 0.1
"""The shortest pause before a copy of a request (seconds): one whose time-out is 0.1 s, of which many are sent when a
host has died, is sent once."""
TRIES: Final = 20
"""Copies of a request, whose time-out may be a lease of 2 s. With one of two registries suspended half of them are
lost: with one a second, 1 request in 8 fails, and with twenty 1 in 2**20 (table of faults: a registry hangs past a
lease)."""
AT_ONCE: Final = 32
"""Requests of one kind that a process makes at a time where it has many: after an outage all processes do."""
BATCH_AGAIN_S: Final = 2.0
"""The pause before a copy of a batch of members, which takes longer (seconds)."""

RENEW_AT: Final = 1 / 3
"""Share of a lease after which it is renewed, at the latest. A renewal may take the rest of the lease."""
FIRST_AGAIN_S: Final = 0.5
"""Between two attempts to get the first lease (seconds)."""

_log = logging.getLogger("smcp_bus.registry_client")


class RegistryClient:
    """Args:
    credential, process: the owner process that this client speaks for.
    lease_s: `SMCP_LEASE_S`. Within a lease it is known that no registry answers.
    """

    def __init__(self, bus: Bus, *, credential: str, process: str, lease_s: float = ROOM_S) -> None:
        self._bus = bus
        self.credential = credential
        self.process = process
        self._proof = secrets.token_hex(16)
        self.room_s = min(ROOM_S, lease_s)
        """How long a request takes at most (seconds)."""

    async def join(self, seat: SeatKey, claim: Claim, body: bytes, *, req_id: str = "") -> Joined:
        """`body` is the EnterOfficeReq as it came.

        Raises NotAllowed (refused) and Unavailable (no quorum, no registry, or the question to the present owner is
        open), both with `details.may_have_run` where another registry was asked, too.
        """
        subject = subjects.server(*seat, "join_office")
        return _read(Joined, await self._send(subject, body, _claim_header(claim), req_id=req_id))

    async def leave(self, seat: SeatKey, claim: Claim, *, req_id: str = "", restarts: bool = False) -> contract.Left:
        """`restarts`: nothing is announced, and the seat is kept for another process of the same identity.

        Raises NotInOffice where the claim is not the member there, Unavailable as `join`.
        """
        body = orjson.dumps({"office_id": seat[0]} | ({RESTARTS: True} if restarts else {}))
        subject = subjects.server(*seat, "leave_office")
        return _read(contract.Left, await self._send(subject, body, _claim_header(claim), req_id=req_id))

    async def list_room(self, seat: SeatKey, body: bytes, *, after: int) -> bytes:
        """ListRoomRet as JSON, not older than the revision `after`: the newest that the asker knows of."""
        return await self._send(subjects.server(*seat, "list_room"), body, {AFTER: str(after)})

    async def room(self, seat: SeatKey, *, after: int, req_id: str) -> ListRoomRet:
        body = orjson.dumps({"agent": seat[2], "req_id": req_id, "office_id": seat[0]})
        return _read(ListRoomRet, await self.list_room(seat, body, after=after))

    async def confirm(self, seat: SeatKey, claim: Claim) -> contract.Confirmed:
        """Whether the registry's view still holds this very claim; works without quorum."""
        subject = subjects.server(*seat, "confirm")
        return _read(contract.Confirmed, await self._send(subject, b"", _claim_header(claim), timeout=CONFIRM_S))

    async def find(self, seat: SeatKey, computer: str, *, timeout: float, req_id: str = "") -> contract.Found:
        body = contract.FindComputer(computer=computer).model_dump_json().encode()
        subject = subjects.server(*seat, "find")
        return _read(contract.Found, await self._send(subject, body, timeout=timeout, req_id=req_id))

    async def tell(
        self, seat: SeatKey, verb: str, body: bytes, *, timeout: float | None = None, req_id: str = "", caller: str = ""
    ) -> None:
        """Have a notification published to the office. Its receivers drop the second one of a repeated request.

        `caller`: the identity of the Agent's key or token, for a cancel.
        """
        headers = {NOTIFICATION_ID: uuid.uuid4().hex} | ({SUBJECT: caller} if caller else {})
        await self._send(subjects.server(*seat, verb), body, headers, timeout=timeout, req_id=req_id)

    async def renew_lease(self, renewal: contract.LeaseRenewal, *, timeout: float | None = None) -> LeaseState:
        """A renewal that says `accepting` is a gateway's, and goes where gateways alone may publish."""
        verb = contract.LEASE.verb
        if renewal.accepting is not None:
            verb, renewal = contract.GATEWAY_LEASE.verb, renewal.model_copy(update={"proof": self._proof})
        subject = subjects.hosts(self.credential, self.process, verb)
        return _read(LeaseState, await self._send(subject, renewal.model_dump_json().encode(), timeout=timeout))

    async def assert_members(self, assertion: contract.Assertion) -> contract.AssertionResult:
        subject = subjects.hosts(self.credential, self.process, "assert")
        again_s = BATCH_AGAIN_S if len(assertion.members) > 1 else BATCH_AGAIN_S / 4  # in a drain many ask for one
        body = assertion.model_dump_json(exclude_none=True).encode()
        return _read(contract.AssertionResult, await self._send(subject, body, timeout=ROOM_S, again_s=again_s))

    async def record_approval(self, office: str, computer: str, record: bytes) -> None:
        """Have an `Approval` of that Computer recorded. Raises Unavailable where it is not."""
        subject = subjects.server(office, "computer", computer, "approval")
        # Each registry that is asked writes a record, so another one is asked late.
        await self._send(subject, record, timeout=ANSWER_S, again_s=ANSWER_S / 2)

    async def _send(
        self,
        subject: str,
        body: bytes,
        headers: Headers = NO_HEADERS,
        *,
        req_id: str = "",
        timeout: float | None = None,
        again_s: float | None = None,
    ) -> bytes:
        loop = asyncio.get_running_loop()
        timeout = self.room_s if timeout is None else timeout
        patience = max(AGAIN_S, timeout / TRIES) if again_s is None else again_s
        deadline, backoff = loop.time() + timeout, Backoff(first_s=0.02, longest_s=0.5)
        pending: set[asyncio.Task[Reply]] = set()
        ended: set[asyncio.Task[Reply]] = set()
        tried = False
        with sending(subject) as carried:
            # copies have the same id
            headers = {REQ_ID: req_id or uuid.uuid4().hex, **headers, **carried, PROOF: self._proof}
            try:
                while (left := deadline - loop.time()) > 0:
                    pending.add(loop.create_task(self._bus.request(subject, body, timeout=left, headers=headers)))
                    ended, pending = await asyncio.wait(
                        pending, timeout=min(left, patience), return_when=asyncio.FIRST_COMPLETED
                    )
                    refused: Reply | None = None
                    for question in ended:
                        try:
                            reply = question.result()
                        except NoResponder:
                            await asyncio.sleep(min(left, backoff.next()))
                        except RequestTimedOut:
                            tried = True
                        else:
                            if ERROR not in reply.headers:
                                return reply.body
                            refused = reply
                    if refused is not None:
                        error = to_error(refused)
                        if (tried or pending) and isinstance(error, Unavailable | NotAllowed):
                            error.details["may_have_run"] = True
                        raise error
                raise Unavailable("no registry answered", details={"may_have_run": tried or bool(pending)})
            finally:
                for question in pending | ended:
                    question.cancel()
                await asyncio.gather(*pending, *ended, return_exceptions=True)  # several may have failed at once


def to_error(reply: Reply) -> SmcpError:
    try:
        body = ErrorBody.model_validate_json(reply.body)
    except ValidationError:
        return Internal("the other side sent an error that cannot be read")
    return error_of(body.code, body.message, body.details)


def _read(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError:
        raise Internal("the registry sent an answer that cannot be read") from None


def _claim_header(claim: Claim) -> dict[str, str]:
    return {CLAIM: claim.model_dump_json(exclude_none=True)}


@dataclass(eq=False, repr=False)
class LeaseKeeper:
    """Renews this process's lease every third of it.

    A failed renewal loses no member: the registries ask a process before they remove its members.
    """

    registry: RegistryClient
    _: KW_ONLY
    lease_s: float
    """How long the registries let a lease live, in seconds; less if they say so."""
    describe: Callable[[], contract.LeaseRenewal]
    """What goes with each renewal."""
    on_lapsed: Callable[[], None]
    """Called after a renewal that found no lease (any more): the members are to be asserted."""
    on_renewed: Callable[[LeaseState], None] | None = None
    """Given what the registry said to each renewal."""
    held: bool = field(default=False, init=False)
    """Whether the last renewal succeeded."""
    renewals: int = field(default=0, init=False)
    """Those that succeeded."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _renewed_at: float = field(default=0.0, init=False)

    @property
    def acquired(self) -> bool:
        return self.renewals > 0

    @property
    def age(self) -> float:
        """Seconds since the last renewal that succeeded; 0 before the first."""
        return time.monotonic() - self._renewed_at if self.acquired else 0.0

    async def acquire(self) -> None:
        """Raises SmcpError, BusError: no registry could be reached, or there is no quorum."""
        self._renewed(await self.registry.renew_lease(self.describe()))

    def renew_soon(self) -> None:
        """Renew now instead of at the next turn: after a reconnect, or where what goes with it has changed."""
        self._wake.set()

    async def run(self) -> None:
        failing = False
        while True:
            timeout = None
            if self.acquired:
                timeout = self.lease_s * (1 - RENEW_AT)
                await set_within(jittered(self.lease_s * RENEW_AT), self._wake)
                self._wake.clear()
            try:
                state = await self.registry.renew_lease(self.describe(), timeout=timeout)
            except (BusError, SmcpError) as error:
                self.held = False
                if not failing:  # once for each outage
                    _log.warning("the lease could not be renewed: %s; retrying", describe(error))
                failing = True
                if not self.acquired:
                    await asyncio.sleep(jittered(FIRST_AGAIN_S))
                continue
            if failing:
                _log.info("the lease is renewed again")
            failing = False
            lapsed = self.acquired and not state.renewed
            self._renewed(state)
            if lapsed:
                _log.warning("the lease had expired; asserting the members again")
                self.on_lapsed()

    def _renewed(self, state: LeaseState) -> None:
        self.held = True
        self.renewals += 1
        self._renewed_at = time.monotonic()
        self.lease_s = min(self.lease_s, state.lease_s)
        if self.on_renewed is not None:
            self.on_renewed(state)
