"""`confirm`: an owner asks whether its claim still stands, after its connection broke or it stood still."""

from smcp_bus.door.types import Call
from smcp_bus.internal_rows import Nothing
from smcp_bus.registry_contract import Confirmed
from smcp_registry.claims import claim_of
from smcp_registry.membership import Membership, named
from smcp_registry.view import MembersView


async def confirm(_: Nothing, call: Call, *, view: MembersView, membership: Membership) -> Confirmed:
    """Read from the view, so that it works without quorum; `view` says how new it is.

    Raises:
        Malformed: there is no claim with it.
    """
    claim = claim_of(call)
    await membership.settled(call)
    entry = view.member(*named(call))
    mine = entry is not None and entry.holds(claim)
    return Confirmed(mine=mine, revision=entry.revision if mine and entry is not None else 0, view=view.revision)
