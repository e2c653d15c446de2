"""`find`: a gateway asks, after "no responder", whether that Computer is a member at all; an owner of a Computer asks,
after an outage, whether the office's Agent is still who it was."""

import asyncio
from collections.abc import Callable
from typing import Final

from smcp_bus.door.types import Call
from smcp_bus.headers import AFTER
from smcp_bus.registry_contract import FindComputer, Found
from smcp_proto.errors import NotInOffice, Unavailable
from smcp_proto.ids import Role
from smcp_registry.membership import Membership, after, named
from smcp_registry.records import MemberRecord, record_key
from smcp_registry.view import MembersView

LOOK_S: Final = 0.5
"""How long the store may take to say that a member is too new for the view (seconds)."""


async def find(
    request: FindComputer, call: Call, *, view: MembersView, membership: Membership, now: Callable[[], float]
) -> Found:
    """Whether the Computer is in the asker's office, and since when its Agent is. Answered at once, unless it says what
    the view must have reached; without quorum from the view alone.

    Raises:
        NotInOffice: the asker is no member.
        Unavailable: the view has not reached what the asker was told of; or the store is lost, and the asker with it.
    """
    place = named(call)
    office = place[0]
    if AFTER in call.headers:
        await membership.settled(call)
        await membership.caught_up(after(call), call)
    membership.seen(*place)
    # one after the other they would take twice the time that the store is given
    asker, record = await asyncio.gather(
        _look(*place, view=view, membership=membership),
        _look(office, "computer", request.computer, view=view, membership=membership),
    )
    if asker is None:
        raise NotInOffice("not in this office")
    awaited = record_key(office, "computer", request.computer) in view.awaited(office)
    return Found(
        member=record is not None or awaited,
        moving=record is not None and record.moving(now()),
        agent_since=_agent_since(view, office),
    )


def _agent_since(view: MembersView, office: str) -> int | None:
    agent = view.entry(record_key(office, "agent", ""))
    began_after = None if agent is None else agent.record.began_after
    return None if began_after is None else 2 * (began_after + 1)


async def _look(
    office: str, role: Role, name: str, *, view: MembersView, membership: Membership
) -> MemberRecord | None:
    entry = view.member(office, role, name)
    if entry is not None:
        return entry.record
    try:
        async with asyncio.timeout(LOOK_S):
            return (await membership.stored(office, role, name)).record
    except (Unavailable, TimeoutError):
        return None  # the view is all there is
