"""What a key or token allows, and the decision whether a join is within it: pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from smcp_gateway.auth.patterns import Pattern, matches
from smcp_proto.errors import NotAllowed
from smcp_proto.ids import Role


class Grants(BaseModel):
    """Which places its holder may take: an office, a role and a name that all match.

    An entry of the key file has these fields, and so has the claim of a JWT. A field that is not known is refused: it
    could be a restriction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    offices: tuple[Pattern, ...] = Field(min_length=1, max_length=64)
    """Patterns; there is no default."""
    roles: tuple[Role, ...] = Field(default=("agent", "computer"), min_length=1, max_length=2)
    names: tuple[Pattern, ...] = Field(default=("*",), min_length=1, max_length=64)
    """Patterns of the Agent's or the Computer's name."""


class BadGrants(ValueError):
    """A claim does not say what is allowed. The message names the field."""


def read_grants(claim: object) -> Grants:
    """The grants in a claim of a JWT.

    Raises:
        BadGrants: it is no object, or a field is missing, wrong or unknown.
    """
    if not isinstance(claim, Mapping):
        raise BadGrants("is not an object")
    try:
        return Grants.model_validate(dict(claim))
    except ValidationError as error:
        first: Any = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise BadGrants(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None


def decide(grants: Grants, *, office: str, role: Role, name: str) -> NotAllowed | None:
    """Why the holder of these grants may not take that place; None: it may. `details.field` names what is not granted.

    Offices come first: to somebody who may not be in an office nothing else is said of it.
    """
    if not any(matches(pattern, office) for pattern in grants.offices):
        return NotAllowed("the token is not for this office", details={"field": "office_id"})
    if role not in grants.roles:
        return NotAllowed(f"the token is not for the role {role!r}", details={"field": "role"})
    if not any(matches(pattern, name) for pattern in grants.names):
        return NotAllowed("the token is not for this name", details={"field": "name"})
    return None
