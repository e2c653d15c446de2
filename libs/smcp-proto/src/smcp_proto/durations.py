"""ISO 8601 durations (`PT30S`, `PT5M`), as the configuration of Streamable HTTP servers writes them."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

_DURATION = re.compile(
    r"P(?:(?P<weeks>\d+(?:[.,]\d+)?)W)?(?:(?P<days>\d+(?:[.,]\d+)?)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+(?:[.,]\d+)?)H)?(?:(?P<minutes>\d+(?:[.,]\d+)?)M)?(?:(?P<seconds>\d+(?:[.,]\d+)?)S)?)?",
    re.ASCII,
)
_MAX_LENGTH = 64


def parse_duration(text: str) -> timedelta:
    """Return the duration, which is longer than nothing.

    Raises:
        ValueError: it is not of the form `P[nW][nD][T[nH][nM][nS]]` (years and months have no fixed length), or it is
            zero, or beyond what a timedelta holds.
    """
    match = _DURATION.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    parts = {unit: float(n.replace(",", ".")) for unit, n in match.groupdict().items() if n} if match else {}
    if not parts:
        raise ValueError("not an ISO 8601 duration such as PT30S")
    try:
        duration = timedelta(**parts)
    except OverflowError:
        raise ValueError("the duration is too long") from None
    if duration <= timedelta():
        raise ValueError("the duration is zero")
    return duration


def _check(text: str) -> str:
    if "${" not in text:  # a placeholder is resolved before it is used, and checked then
        parse_duration(text)
    return text


IsoDuration = Annotated[str, Field(strict=True), AfterValidator(_check)]
"""An ISO 8601 duration as text, for pydantic models; one that holds a placeholder is not read yet."""
