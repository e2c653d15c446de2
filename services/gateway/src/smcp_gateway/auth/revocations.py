"""The file of JWTs that are not accepted any more, though their issuer signed them and they have not expired.

API keys are revoked by removing them from their own file.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from smcp_gateway.auth.grants import Principal, first_problem
from smcp_gateway.auth.watched_file import AuthFileError, content


class Revocations(BaseModel):
    """`{"jti": [...], "sub": [...]}`. Unknown fields are refused: they could name more tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jti: frozenset[str] = frozenset()
    """Single tokens."""
    sub: frozenset[str] = frozenset()
    """Subjects: all tokens of each, also those that are issued later."""

    def holds(self, principal: Principal) -> bool:
        """Whether the token of this holder was revoked."""
        return principal.kind == "jwt" and (principal.token_id in self.jti or principal.subject in self.sub)


def read_revocations(path: Path) -> Revocations:
    """Raises AuthFileError."""
    try:
        return Revocations.model_validate_json(content(path))
    except ValidationError as error:
        raise AuthFileError(f"{path}: {first_problem(error)}") from None
