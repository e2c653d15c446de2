"""The principal of a client, the grants of its key or token, and the check of a join against them."""

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from smcp_proto.errors import NotAllowed
from smcp_proto.member_names import Role

LONGEST: Final = 256
"""Characters of a pattern or a subject. A name has at most 128."""


def checked(pattern: str) -> str:
    r"""The pattern in NFC. Raises ValueError: it ends with a lone `\`, or has control characters or lone surrogates."""
    normal = _without_controls(unicodedata.normalize("NFC", pattern))
    _regex(normal)
    return normal


Pattern = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST), AfterValidator(checked)]


def matches(pattern: str, name: str) -> bool:
    r"""Whether the whole name matches: `*` is any text, `?` one character, and `\` escapes the next one.

    Takes at most `len(pattern) * len(name)` steps. Raises ValueError: see `checked`.
    """
    regex = _regex(unicodedata.normalize("NFC", pattern))
    return regex.fullmatch(unicodedata.normalize("NFC", name)) is not None


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    between = [""]  # the stars
    characters = iter(pattern)
    for character in characters:
        if character == "*":
            between.append("")
        elif character == "\\":
            if (escaped := next(characters, None)) is None:
                raise ValueError("ends with a backslash that escapes nothing")
            between[-1] += re.escape(escaped)
        else:
            between[-1] += "." if character == "?" else re.escape(character)
    if len(between) == 1:
        return re.compile(between[0], re.DOTALL)
    first, *middle, last = between
    # the first match of a part is as good as a later one; atomic groups keep it, so there is no backtracking
    return re.compile(f"{first}{''.join(f'(?>.*?{part})' for part in middle)}.*{last}", re.DOTALL)


def check_subject(subject: object) -> str:
    """The subject, unchanged. Raises ValueError: not a text of 1 to 256 characters, or with control characters."""
    if not isinstance(subject, str):
        raise ValueError("has to be a string")  # noqa: TRY004 -- pydantic takes this one
    if not 1 <= len(subject) <= LONGEST:
        raise ValueError(f"has to have 1 to {LONGEST} characters")
    return _without_controls(subject)


def _without_controls(text: str) -> str:
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError("holds a control character, or half of a character")
    return text


class Grants(BaseModel):
    """The seats that a client may take: office, role and name have to match.

    An entry of the key file and the claim of a JWT have these fields. Unknown fields are refused: they could be
    restrictions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    offices: tuple[Pattern, ...] = Field(min_length=1, max_length=64)
    roles: tuple[Role, ...] = Field(default=("agent", "computer"), min_length=1, max_length=2)
    names: tuple[Pattern, ...] = Field(default=("*",), min_length=1, max_length=64)
    """Allowed names of the Agent or the Computer."""


@dataclass(frozen=True, slots=True)
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

    @property
    def identity(self) -> str:
        """The registry keeps a seat for it: a new token of the same subject takes the seat up again."""
        return blake2b(json.dumps([self.kind, self.issuer, self.subject]).encode(), digest_size=16).hexdigest()


def first_problem(error: ValidationError) -> str:
    """The field, if any, and what is wrong with it, without the value."""
    first: Any = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    said = first["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said


def decide(grants: Grants, *, office: str, role: Role, name: str) -> NotAllowed | None:
    """The refusal (`details.field`) of a seat that is not granted; None: it is.

    The office is checked first: somebody without access to it learns nothing else.
    """
    if not any(matches(pattern, office) for pattern in grants.offices):
        return NotAllowed("the token is not for this office", details={"field": "office_id"})
    if role not in grants.roles:
        return NotAllowed(f"the token is not for the role {role!r}", details={"field": "role"})
    if not any(matches(pattern, name) for pattern in grants.names):
        return NotAllowed("the token is not for this name", details={"field": "name"})
    return None
