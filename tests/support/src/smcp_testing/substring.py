"""Compares a text with a part of it."""


class Part(str):
    """Equals each text that holds it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str(self) in other

    __hash__ = str.__hash__
