"""When a question to the registries is put once more."""

import asyncio
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from smcp_bus import subjects
from smcp_bus.bus import NO_HEADERS, Bus, Headers, Reply
from smcp_bus.door.tracing import sending
from smcp_bus.errors import NoResponder, RequestTimedOut
from smcp_bus.headers import AFTER, CLAIM, ERROR, REQ_ID
from smcp_bus.registry_contract import (
    Assertion,
    AssertionResult,
    Claim,
    Confirmed,
    FindComputer,
    Found,
    Joined,
    LeaseRenewal,
    LeaseState,
    Left,
)
from smcp_proto.errors import ERRORS, ErrorBody, Internal, NotAllowed, SmcpError, Unavailable
from smcp_proto.ids import Role
from smcp_proto.schemas import ListRoomRet


@dataclass(frozen=True, slots=True)
class Hedges:
    """When a question that has no answer is put once more, beside the others (seconds).

    NATS picks the registry at random, so each try may go to one that stands still. No question is withdrawn for the
    next one: a registry that has it works on it all the same, and the answer of a slow one may be the only one.
    """

    first: float
    longest: float
    """They grow from `first` to this."""
    quick: bool = False
    """Whether it is put again sooner while one of the registries was just seen to stand still."""


HEDGES: Final = Hedges(0.3, 1.0, quick=True)
"""12 tries within 10 s: with one of two registries standing still all of them miss once in 2**12 requests."""
FEWEST_TRIES: Final = 10
"""Of a question that has less time than 10 s: with one of two registries standing still all of them miss once in 2**10
requests."""
BATCH_HEDGES: Final = Hedges(2.0, 2.0)
"""A batch takes its time."""
QUICK: Final = Hedges(0.03, 0.3)
"""Where one of the registries stands still and another answers promptly."""
QUICK_TRIES: Final = 10
"""So many tries of a question are quick; then it goes on as the others do, should all of them stand still by now."""
GROWTH: Final = 1.5
STILL_S: Final = 10.0
"""How long one registry is taken to stand still after that was seen last (seconds)."""
PROMPT: Final = 0.2
"""An answer is prompt that took this share of the time for which an earlier copy of its question is open. Where all
registries are slow none is: a later copy is no quicker than an earlier one."""

COPIES_A_QUESTION: Final = 1.5
"""On average, of all questions of one client. Where one of two registries stands still they need one."""
MOST_COPIES: Final = 50.0
"""What a client may have saved up beside the share of its open questions."""


def hedges_within(seconds: float) -> Hedges:
    """For questions that have so much time."""
    share = seconds / FEWEST_TRIES
    return Hedges(min(HEDGES.first, share), min(HEDGES.longest, share), quick=True)


class Standstill:
    """What one client has seen of its registries."""

    def __init__(self) -> None:
        self._until = 0.0

    def answered(self, now: float, *, asked: float, oldest: float) -> None:
        """A copy of a question was answered while an older one is open.

        Args:
            now, asked, oldest: loop times (seconds): now, and at which those copies were sent.
        """
        if now - asked < PROMPT * (now - oldest) and now - oldest >= QUICK.first:
            self._until = now + STILL_S

    def seen(self, now: float) -> bool:
        """Whether one of the registries is taken to stand still at `now` (loop time)."""
        return now < self._until


class CopyBudget:
    """The further copies that one client may send of its questions. Where registries are slow because there is too much
    to do, copies would make them slower: for seconds every question would be put ten times."""

    def __init__(self) -> None:
        self._left = MOST_COPIES
        self._open = 0

    @contextmanager
    def question(self) -> Iterator[None]:
        """For as long as a question is open: it brings its share, which others may use."""
        self._open += 1
        self._left += COPIES_A_QUESTION
        try:
            yield
        finally:
            self._open -= 1
            self._left = min(self._left, MOST_COPIES + COPIES_A_QUESTION * self._open)

    def spend(self) -> bool:
        """Whether one of them may be put once more."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Pace:
    """The times of one question."""

    def __init__(self, hedges: Hedges, standstill: Standstill) -> None:
        self._hedges = hedges
        self._standstill = standstill
        self._next, self._quick = hedges.first, QUICK.first
        self._tries = 0

    def wait(self, now: float) -> float:
        """How long to wait for an answer before the next try (seconds)."""
        quick = self._tries < QUICK_TRIES and self._hedges.quick and self._standstill.seen(now)
        return self._quick if quick else self._next

    def missed(self) -> None:
        """There was no answer in that time."""
        self._tries += 1
        self._next = min(GROWTH * self._next, self._hedges.longest)
        self._quick = min(GROWTH * self._quick, QUICK.longest)


Model = TypeVar("Model", bound=BaseModel)

ROOM_S: Final = 10.0
"""How long a question to the registries takes at most, tries included (seconds); no longer than a lease."""
CONFIRM_S: Final = 2.5
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5


class RegistryClient:
    """Args:
    credential, process: the owner process that this client speaks for.
    lease_s: `SMCP_LEASE_S`. Who asks something of an office hears within a lease that no registry answers, also where
        the registry that has the question stands still.
    """

    def __init__(self, bus: Bus, *, credential: str, process: str, lease_s: float = ROOM_S) -> None:
        self._bus = bus
        self.credential = credential
        self.process = process
        self.room_s = min(ROOM_S, lease_s)
        """How long a question takes at most, tries included (seconds), where nothing else is said."""
        self._hedges = hedges_within(self.room_s)
        self._standstill = Standstill()
        self._copies = CopyBudget()

    async def join(self, office: str, role: Role, name: str, claim: Claim, body: bytes, *, req_id: str = "") -> Joined:
        """Claim a place. `body` is the EnterOfficeReq as it came.

        Raises:
            NotAllowed: refused; its message says why.
            Unavailable: no quorum, no registry, or the question to the present owner is open.

            Of both `details.may_have_run` is true where it may have been carried out all the same: another registry
            was asked, too, and may have found the place free.
        """
        headers = {CLAIM: claim.model_dump_json(exclude_none=True)} | _req_id_header(req_id)
        return await self._ask(subjects.server(office, role, name, "join_office"), body, Joined, headers)

    async def leave(self, office: str, role: Role, name: str, claim: Claim, *, req_id: str = "") -> Left:
        """Give the place up.

        Raises:
            NotInOffice: the claim is not the member there.
            Unavailable: as for `join`.
        """
        headers = {CLAIM: claim.model_dump_json(exclude_none=True)} | _req_id_header(req_id)
        body = orjson.dumps({"office_id": office})
        return await self._ask(subjects.server(office, role, name, "leave_office"), body, Left, headers)

    async def list_room(self, office: str, role: Role, name: str, body: bytes, *, after: int) -> bytes:
        """ListRoomRet as JSON.

        Args:
            after: the newest revision that the asker knows of, its own join's at least: the list is not older.
        """
        subject = subjects.server(office, role, name, "list_room")
        reply = await self._send(subject, body, {AFTER: str(after)})
        return reply.body

    async def room(self, office: str, role: Role, name: str, *, after: int, req_id: str) -> ListRoomRet:
        """The members of an office, asked by one of them."""
        body = orjson.dumps({"agent": name, "req_id": req_id, "office_id": office})
        return _read(ListRoomRet, await self.list_room(office, role, name, body, after=after))

    async def confirm(
        self, office: str, role: Role, name: str, claim: Claim, *, timeout: float = CONFIRM_S
    ) -> Confirmed:
        """Whether the registry's view still holds this very claim; works without quorum."""
        headers = {CLAIM: claim.model_dump_json(exclude_none=True)}
        subject = subjects.server(office, role, name, "confirm")
        return await self._ask(subject, b"", Confirmed, headers, timeout=timeout)

    async def find(
        self, office: str, role: Role, name: str, computer: str, *, timeout: float, req_id: str = ""
    ) -> Found:
        """Asked once after "no responder": is that Computer a member at all?"""
        body = FindComputer(computer=computer).model_dump_json().encode()
        subject = subjects.server(office, role, name, "find")
        return await self._ask(subject, body, Found, _req_id_header(req_id), timeout=timeout)

    async def agent_since(self, office: str, computer: str, *, after: int) -> int | None:
        """Asked by a Computer of its office, after it may have missed something: see `Found.agent_since`.

        Args:
            after: the newest revision that the asker knows of; 0: none. The answer is not older.
        """
        body = FindComputer(computer=computer).model_dump_json().encode()
        headers = {AFTER: str(after)} | _req_id_header("")
        found = await self._ask(subjects.server(office, "computer", computer, "find"), body, Found, headers)
        return found.agent_since

    async def tell(
        self,
        office: str,
        role: Role,
        name: str,
        verb: str,
        body: bytes,
        *,
        timeout: float | None = None,
        req_id: str = "",
    ) -> None:
        """An event that becomes a notification: `update_*`, `tool_call_cancel`."""
        await self._send(subjects.server(office, role, name, verb), body, _req_id_header(req_id), timeout=timeout)

    async def renew_lease(
        self, renewal: LeaseRenewal, *, timeout: float | None = None, hedges: Hedges | None = None
    ) -> LeaseState:
        """Keep this process's lease, or take one. `timeout` is in seconds."""
        subject = subjects.hosts(self.credential, self.process, "lease")
        body = renewal.model_dump_json().encode()
        return await self._ask(subject, body, LeaseState, timeout=timeout, hedges=hedges)

    async def assert_members(self, assertion: Assertion, *, hedges: Hedges = BATCH_HEDGES) -> AssertionResult:
        """What this gateway holds, after a reconnect or a lapsed lease; at most 500 a batch. No client waits for it."""
        subject = subjects.hosts(self.credential, self.process, "assert")
        body = assertion.model_dump_json(exclude_none=True).encode()
        return await self._ask(subject, body, AssertionResult, timeout=ROOM_S, hedges=hedges)

    async def _ask(
        self,
        subject: str,
        body: bytes,
        model: type[Model],
        headers: Headers = NO_HEADERS,
        *,
        timeout: float | None = None,
        hedges: Hedges | None = None,
    ) -> Model:
        return _read(model, (await self._send(subject, body, headers, timeout=timeout, hedges=hedges)).body)

    async def _send(
        self,
        subject: str,
        body: bytes,
        headers: Headers,
        *,
        timeout: float | None = None,
        hedges: Hedges | None = None,
    ) -> Reply:
        timeout = self.room_s if timeout is None else timeout
        with sending(subject) as carried, self._copies.question():
            return await self._try(
                subject, body, {**headers, **carried}, timeout=timeout, hedges=hedges or self._hedges
            )

    async def _try(self, subject: str, body: bytes, headers: Headers, *, timeout: float, hedges: Hedges) -> Reply:
        """The first answer. A question that stays open is asked again beside it: its registry may be suspended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pause, pace = FIRST_PAUSE_S, Pace(hedges, self._standstill)
        since: dict[asyncio.Task[Reply], float] = {}
        asked: set[asyncio.Task[Reply]] = set()
        ended: set[asyncio.Task[Reply]] = set()
        tried = False
        try:
            while (left := deadline - loop.time()) > 0:
                now = loop.time()
                if not asked or self._copies.spend():
                    question = loop.create_task(self._bus.request(subject, body, timeout=left, headers=headers))
                    asked.add(question)
                    since[question] = now
                patience = min(left, pace.wait(now))
                ended, asked = await asyncio.wait(asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not ended:
                    pace.missed()
                refused: Reply | None = None
                for question in ended:
                    try:
                        reply = question.result()
                    except NoResponder:
                        await asyncio.sleep(min(left, pause * random.uniform(0.5, 1.5)))  # noqa: S311 -- not a secret
                        pause = min(2 * pause, LONGEST_PAUSE_S)
                    except RequestTimedOut:
                        tried = True
                    else:
                        oldest = min((since[other] for other in asked), default=since[question])
                        self._standstill.answered(loop.time(), asked=since[question], oldest=oldest)
                        if ERROR not in reply.headers:
                            return reply
                        refused = reply
                if refused is not None:
                    raise _refusal(refused, others=tried or bool(asked))
            raise Unavailable("no registry answered", details={"may_have_run": tried or bool(asked)})
        finally:
            await _let_go(asked | ended)  # several may have failed at once, with the connection


async def _let_go(asked: set[asyncio.Task[Reply]]) -> None:
    for question in asked:
        question.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


def _refusal(reply: Reply, *, others: bool) -> SmcpError:
    """The error that ends a request. `others`: the same question was put to others too, which may yet carry it out."""
    error = to_error(reply)
    if others and isinstance(error, Unavailable | NotAllowed):
        return type(error)(error.message, details={**error.details, "may_have_run": True})
    return error


def to_error(reply: Reply) -> SmcpError:
    """The error that a reply carries, as the exception to raise."""
    try:
        body = ErrorBody.model_validate_json(reply.body)
    except ValidationError:
        return Internal("the other side sent an error that cannot be read")
    kind = ERRORS.get(body.code, Internal)
    return kind(body.message, details=body.details)


def _read(model: type[Model], body: bytes) -> Model:
    if not body:
        body = b"{}"
    try:
        return model.model_validate_json(body)
    except ValidationError:
        raise Internal("the registry sent an answer that cannot be read") from None


def _req_id_header(req_id: str) -> dict[str, str]:
    """What asks by itself, for no event of a client, gives its request an id of its own."""
    return {REQ_ID: req_id or uuid.uuid4().hex}
