"""What a key or token allows, and the decision whether a join is within it: pure."""

import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from smcp_proto.errors import NotAllowed
from smcp_proto.names import Role

LONGEST: Final = 256
"""Characters of a pattern; a name has at most 128."""
_ANY: Final = "any"
_ONE: Final = "one"


def checked(pattern: str) -> str:
    r"""The pattern in NFC.

    Raises:
        ValueError: it ends with a `\` that nothing follows, or holds a control character or a lone
            surrogate.
    """
    normal = unicodedata.normalize("NFC", pattern)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in normal):
        raise ValueError("holds a control character, or half of a character")
    _tokens(normal)
    return normal


Pattern = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST), AfterValidator(checked)]


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name matches. Takes at most `len(pattern) * len(name)` steps, whatever the pattern.

    Raises:
        ValueError: it is no pattern, see `checked`.
    """
    tokens = _tokens(unicodedata.normalize("NFC", pattern))
    text = unicodedata.normalize("NFC", name)
    token = at = 0
    star: int | None = None
    resume = 0
    while at < len(text):
        if token < len(tokens) and tokens[token] == _ANY:
            star, resume, token = token, at, token + 1
        elif token < len(tokens) and tokens[token] in (_ONE, text[at]):
            token, at = token + 1, at + 1
        elif star is not None:  # the last `*` takes one character more
            resume += 1
            token, at = star + 1, resume
        else:
            return False
    return all(rest == _ANY for rest in tokens[token:])


def _tokens(pattern: str) -> list[str]:
    tokens = []
    characters = iter(pattern)
    for character in characters:
        match character:
            case "*":
                tokens.append(_ANY)
            case "?":
                tokens.append(_ONE)
            case "\\":
                escaped = next(characters, None)
                if escaped is None:
                    raise ValueError("ends with a backslash that escapes nothing")
                tokens.append(escaped)
            case _:
                tokens.append(character)
    return tokens


LONGEST_SUBJECT: Final = 256


def check_subject(subject: object) -> str:
    """The subject as it is: two that differ in anything are two holders.

    Raises:
        ValueError: it is no text of 1 to 256 characters without control characters and lone surrogates.
    """
    if not isinstance(subject, str):
        raise ValueError("has to be a string")  # noqa: TRY004 -- pydantic takes this one
    if not 1 <= len(subject) <= LONGEST_SUBJECT:
        raise ValueError(f"has to have 1 to {LONGEST_SUBJECT} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in subject):
        raise ValueError("holds a control character, or half of a character")
    return subject


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
