"""Identifies the caller of a request: the member in the subject, its claim, and whether the view is new enough."""

import asyncio
import contextlib
import re
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from smcp_bus.dispatch import Call
from smcp_bus.exact_json import SMALL_BYTES
from smcp_bus.headers import AFTER, CLAIM
from smcp_bus.registry_contract import LONGEST_CAPABILITIES, Claim
from smcp_proto.errors import NOT_A_MEMBER, Malformed, NotInOffice, Unavailable
from smcp_proto.member_names import Role, check_name
from smcp_registry.member_records import Seat, record_key
from smcp_registry.members_view import Entry, MembersView
from smcp_registry.store import ANSWER_S, Bucket, read_member

SYNC_S: Final = 1.0
"""How long a request waits for a view that was just lost (seconds); then the old one answers, as without quorum."""
LONGEST: Final = 512
"""Characters of a session, an incarnation or an identity."""

_PROCESS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(eq=False, repr=False)
class Callers:
    """Reads the view; where the view does not know a member (yet), the store."""

    members: Bucket
    view: MembersView

    async def settled(self, call: Call) -> None:
        if self.view.synced.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(SYNC_S, _left(call) / 2)):
                await self.view.synced.wait()

    async def caught_up(self, revision: int, call: Call) -> None:
        """Wait until the view has this revision, and what this registry has confirmed itself. Raises Unavailable."""
        revision = max(revision, self.members.written)
        if not await self.view.reached(revision, min(ANSWER_S, _left(call) * 0.9)):
            raise Unavailable("the registry has not seen yet what you know of the office; ask again")

    async def member(self, call: Call) -> Entry:
        """The member that the subject names. Raises NotInOffice, Unavailable."""
        office, role, name = named(call)
        self.check_not_lost(office, role, name)
        entry = self.view.member(office, role, name) or await self.stored(office, role, name)
        if entry is None:
            raise NotInOffice(NOT_A_MEMBER)
        return entry

    async def stored(self, office: str, role: Role, name: str) -> Entry | None:
        stored = await read_member(self.members, record_key(office, role, name))
        record = stored.record
        if record is None or not record.is_member or record.name != name:
            return None
        return Entry(record, stored.revision)

    def check_not_lost(self, office: str, role: Role | None = None, name: str = "") -> None:
        """Raises Unavailable: NATS lost its store, and this member (if none is named, any of the office) has not
        asserted itself again: "not a member" would make it leave. Check this before the store is read."""
        awaited = self.view.awaited(office)
        if awaited if role is None else record_key(office, role, name) in awaited:
            raise Unavailable("the registry is rebuilding the list of members; ask again")


def after(call: Call) -> int:
    value = call.headers.get(AFTER, "0")
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise Malformed(f"the header {AFTER} is not a revision", details={"field": AFTER})
    return int(value)


def named(call: Call) -> Seat:
    caller = call.caller
    if caller.office is None or caller.role is None or caller.name is None:
        raise NotInOffice(NOT_A_MEMBER)
    return caller.office, caller.role, caller.name


def claim_of(call: Call) -> Claim:
    header = call.headers.get(CLAIM)
    if header is None or len(header) > SMALL_BYTES:
        raise Malformed(f"the header {CLAIM} is missing or too long", details={"field": CLAIM})
    try:
        claim = Claim.model_validate_json(header)
    except ValidationError:
        raise Malformed(f"the header {CLAIM} does not hold a claim", details={"field": CLAIM}) from None
    check_claim(claim)
    return claim


def check_claim(claim: Claim) -> None:
    """Raises Malformed where the owner that a claim names cannot be asked, or is too long to be kept."""
    check_process(claim.credential, claim.process)
    for field in ("session", "incarnation", "identity"):
        value: str = getattr(claim, field)
        if not 1 <= len(value) <= LONGEST:
            raise Malformed(f"a claim's {field} has 1 to {LONGEST} characters", details={"field": CLAIM})
    if len(claim.a2c_version or "") > LONGEST or len(claim.capabilities or b"") > LONGEST_CAPABILITIES:
        raise Malformed("a claim's a2c_version or capabilities are too long", details={"field": CLAIM})


def check_process(credential: str, process: str) -> None:
    """Raises Malformed where these cannot be tokens of a subject: a process is asked by its name."""
    try:
        check_name(credential)
    except ValueError as error:
        raise Malformed(f"a credential's name: {error}", details={"field": "credential"}) from None
    if not _PROCESS.fullmatch(process):
        raise Malformed("a process is named by letters, digits, _ and -", details={"field": "process"})


def _left(call: Call) -> float:
    return max(0.0, call.deadline - asyncio.get_running_loop().time())
