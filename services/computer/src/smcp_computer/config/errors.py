"""Errors of a configuration, named so that a user can act on them."""


class ConfigError(Exception):
    """The file cannot be used as it is.

    Attributes:
        problems: all that is wrong, each with its place in the file; the message has a line for each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class MissingValue(ConfigError):
    """A placeholder of one server has no value; only that server cannot run."""


class UndeclaredInput(MissingValue):
    """A placeholder names an input that the file does not have: its server can never run with this file."""
