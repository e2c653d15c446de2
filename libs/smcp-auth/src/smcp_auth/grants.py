"""The principal of a client, the grants of its key or token, the check of a join against them, and revoked JWTs."""

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from smcp_bus.callers import Rights
from smcp_proto.errors import NotAllowed
from smcp_proto.member_names import LONGEST, Pattern, Role, matches, without_controls
from smcp_proto.validation import malformed
from smcp_service.files import UnusableFile, read_protected

Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
PerSecond = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class Quota(BaseModel):
    """The quotas of a key or token; what is not there is as the settings say, and 0 is unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sockets: Count | None = None
    """Connections; of an office: its members."""
    calls_per_s: PerSecond | None = None
    """Events of clients of all kinds, calls of Agents first of all."""
    calls_in_flight: Count | None = None
    """Events not answered yet."""
    bytes_per_s: PerSecond | None = None
    """Bytes of events and their answers in a second."""
    subscriptions: Count | None = None
    """To resources: at a gateway those of Computers on Socket.IO, at smcp-mcp all."""
    reads_per_s: PerSecond | None = None
    """Requests that make MCP servers work (computer.txt, resources chapter, 4.2)."""


UNLIMITED: Final = Quota(**dict.fromkeys(Quota.model_fields, 0))
"""For the key of smcp-mcp at gateways: smcp-mcp counts each of its users, and one could use up a quota of all."""


Subject = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST), AfterValidator(without_controls)]
"""The holder of a key or token."""


class Grants(BaseModel):
    """The seats that a client may take (office, role and name have to match), and what an Agent may ask of Computers.

    Fields of an entry of the key file, and of the claim of a JWT. Unknown ones are refused: they could be restrictions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    offices: tuple[Pattern, ...] = Field(min_length=1, max_length=64)
    roles: tuple[Role, ...] = Field(default=("agent", "computer"), min_length=1, max_length=2)
    names: tuple[Pattern, ...] = Field(default=("*",), min_length=1, max_length=64)
    """Allowed names of the Agent or the Computer."""
    computers: tuple[Pattern, ...] = Field(default=("*",), min_length=1, max_length=64)
    """For an Agent: the Computers that it may ask."""
    tools: tuple[Pattern, ...] = Field(default=("*",), min_length=1, max_length=64)
    """For an Agent: the tools that it may see and call, by the names under which Computers list them."""
    read_only: bool = Field(default=False, strict=True)
    """For an Agent: only tools of which their server says `readOnlyHint: true`."""
    delegates: bool = Field(default=False, strict=True)
    """For an Agent: it may call tools for others, and says for whom (`a2c_on_behalf`); it checks the user's rights."""
    quota: Quota | None = None
    """What it may ask for at a time and in a second, in place of the settings."""


@dataclass(frozen=True)
class Principal:
    """The authenticated holder of a key or token."""

    subject: str
    """`sub` of the token, or the subject of the key's entry."""
    grants: Grants
    """For a key: its entry at the time when it was accepted."""
    issuer: str | None = None
    """`iss` of the token; one subject of two issuers is two holders."""
    expires_at: float | None = None
    """Unix seconds; None: never."""
    kind: Literal["jwt", "key"] = "jwt"
    token_id: str | None = None
    """`jti` of the token."""

    @cached_property
    def identity(self) -> str:
        """Whose seat the registry keeps: that of all tokens of a subject. Kept, since each event is counted for it."""
        return blake2b(json.dumps([self.kind, self.issuer, self.subject]).encode(), digest_size=16).hexdigest()

    @property
    def rights(self) -> Rights:
        grants = self.grants
        return Rights(holder=self.subject, computers=grants.computers, tools=grants.tools, read_only=grants.read_only)


def decide(grants: Grants, *, office: str, role: Role, name: str | None) -> NotAllowed | None:
    """The refusal (`details.field`) of a seat that is not granted; None: it is. The office is checked first."""
    if not any(matches(pattern, office) for pattern in grants.offices):
        return NotAllowed("the key or token is not for this office", details={"field": "office_id"})
    if role not in grants.roles:
        return NotAllowed(f"the key or token is not for the role {role!r}", details={"field": "role"})
    if name is not None and not any(matches(pattern, name) for pattern in grants.names):
        return NotAllowed("the key or token is not for this name", details={"field": "name"})
    return None


class Revocations(BaseModel):
    """The file of JWTs that are not accepted any more. Unknown fields are refused: they could name more tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jti: frozenset[str] = frozenset()
    """Single tokens."""
    sub: frozenset[str] = frozenset()
    """Subjects: all tokens of each, also those that are issued later."""

    def holds(self, principal: Principal) -> bool:
        """Whether the token of this holder was revoked."""
        return principal.kind == "jwt" and (principal.token_id in self.jti or principal.subject in self.sub)


def read_revocations(path: Path) -> Revocations:
    """Raises UnusableFile."""
    try:
        return Revocations.model_validate_json(read_protected(path))
    except ValidationError as error:
        raise UnusableFile(f"{path}: {malformed(error).message}") from None
