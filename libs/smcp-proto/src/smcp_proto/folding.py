"""Text made comparable: case and the ways to write the same character do not count (NFKC, case-folded)."""

import unicodedata
from typing import Final

NUL: Final = "\0"
"""Never in folded text: it can stand between texts that are searched together."""


def fold(text: str) -> str:
    """Return `text` as it is compared; a NUL counts as U+FFFD."""
    if text.isascii():
        return text.lower().replace(NUL, "\ufffd")
    # Unicode's compatibility caseless match: folding can undo the normal form, and the normal form can bring new case
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold()).casefold()
    return unicodedata.normalize("NFKC", folded).replace(NUL, "\ufffd")
