"""`find`: a gateway asks, after "no responder", whether that Computer is a member at all."""

import asyncio
from collections.abc import Callable
from typing import Final

from smcp_bus.dispatch_types import Call
from smcp_bus.registry_contract import FindComputer, Found
from smcp_proto.errors import Unavailable
from smcp_registry.membership import Membership, named
from smcp_registry.view import MembersView

LOOK_S: Final = 0.5
"""How long the store may take to say that a member is too new for the view (seconds)."""


async def find(
    request: FindComputer, call: Call, *, view: MembersView, membership: Membership, now: Callable[[], float]
) -> Found:
    """Whether the Computer is in the asker's office. Answered at once; without quorum from the view alone.

    Raises:
        NotInOffice: the subject names no member's place.
    """
    office, _, _ = named(call)
    entry = view.member(office, "computer", request.computer)
    record = entry.record if entry is not None else None
    if record is None:
        try:
            async with asyncio.timeout(LOOK_S):
                record = (await membership.stored(office, "computer", request.computer)).record
        except (Unavailable, TimeoutError):
            pass  # the view is all there is
    return Found(member=record is not None, moving=record is not None and record.moving(now()))
