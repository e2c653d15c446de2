"""Errors in a line of a log or a message."""


def said(error: BaseException) -> str:
    """What an error says of itself; a time-out says nothing, so then its name."""
    return str(error) or type(error).__name__
