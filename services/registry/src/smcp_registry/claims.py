"""The claim that goes with a member's request, checked before it becomes a subject or a key."""

import re
from typing import Final

from pydantic import ValidationError

from smcp_bus.door.types import Call
from smcp_bus.headers import CLAIM
from smcp_bus.registry_contract import Claim
from smcp_proto.errors import Malformed
from smcp_proto.names import check_name

LONGEST: Final = 512
"""Characters of a session, an incarnation or an identity."""

_PROCESS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def claim_of(call: Call) -> Claim:
    """The request's claim.

    Raises:
        Malformed: there is none, or it is not one; `details.field` names the header.
    """
    header = call.headers.get(CLAIM)
    if header is None:
        raise Malformed(f"the header {CLAIM} is missing", details={"field": CLAIM})
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


def check_process(credential: str, process: str) -> None:
    """Raises Malformed where these cannot be tokens of a subject: a process is asked by its name."""
    try:
        check_name(credential)
    except ValueError as error:
        raise Malformed(f"a credential's name: {error}", details={"field": "credential"}) from None
    if not _PROCESS.fullmatch(process):
        raise Malformed("a process is named by letters, digits, _ and -", details={"field": "process"})
