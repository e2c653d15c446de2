"""The cursor of a list over all Computers of an office: which Computer, and where in its own list. Pure.

It names nobody that the Agent could not ask by name: a Computer is looked for in the Agent's own office only.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final

import orjson

from smcp_proto.errors import Malformed
from smcp_proto.names import check_name
from smcp_proto.schemas.resources import MAX_CURSOR

FIELD: Final = "payload.params.cursor"
_MARK: Final = "office"


@dataclass(frozen=True, slots=True)
class OfficeCursor:
    """Where a list goes on."""

    verb: str
    """Of which list: one of resources does not go on as one of templates."""
    computer: str
    inner: str | None
    """That Computer's own cursor; None: behind that Computer."""

    def write(self) -> str | None:
        """The opaque text; None: it would be longer than a cursor may be."""
        fields = orjson.dumps([_MARK, self.verb, self.computer, self.inner])
        text = base64.urlsafe_b64encode(fields).rstrip(b"=").decode()
        return text if len(text) <= MAX_CURSOR else None


def read_cursor(text: str, verb: str) -> OfficeCursor:
    """Read what `OfficeCursor.write` wrote.

    Raises:
        Malformed: it did not write that, or for another list; `details.field` is `payload.params.cursor`.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        fields: Any = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, orjson.JSONDecodeError):
        raise unreadable() from None
    match fields:
        case [mark, str(of), str(computer), str() | None as inner] if (mark, of) == (_MARK, verb):
            try:
                return OfficeCursor(verb, check_name(computer), inner)
            except ValueError:
                raise unreadable() from None
    raise unreadable()


def unreadable() -> Malformed:
    """The 400 for a cursor that no such list gave."""
    reason = "is none that this list gave"
    return Malformed(f"{FIELD}: {reason}", details={"field": FIELD, "reason": reason})
