"""What looks like a secret: names that say it, and forms that stand in texts. No list of this kind is complete."""

import re
from typing import Final

_WORD: Final = (
    r"(?:(?:api|access|private)[-_]?key|(?<!max[-_])token|secret|passw(?:or)?d|passphrase|pwd|credential|cookie|bearer"
    r"|authorization)"
)
SCHEME: Final = r"(?:(?:Bearer|Basic|Token)\s+)?"
SECRET_WORD: Final = re.compile(_WORD, re.IGNORECASE)
IN_TEXT: Final = (
    re.compile(
        # `token=X`, and as a header, in JSON or in VRL: `Authorization: Bearer X`, `"token": "X"`, `.token = "X"`
        rf"{_WORD}s?(?:[=:]\s*|[\"']?\s*[=:]\s*[\"']){SCHEME}(?P<secret>[^\s&,;\"']+)",
        re.IGNORECASE,
    ),
    re.compile(r"\w://(?P<secret>[^/\s@]+)@"),
    re.compile(
        r"\b(?P<secret>sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abprs]-[\w-]{10,}"
        # only where a word begins, hyphens included: else a long text takes time by the square of its length
        r"|AKIA[0-9A-Z]{16}|glpat-[\w-]{16,}|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    ),
)
"""The group `secret` is the part that nobody may see."""
