"""Errors of a configuration, named so that a user can act on them."""

from pydantic import ValidationError

from smcp_proto.validation import field_of, reason_of


class ConfigError(Exception):
    """The file cannot be used as it is.

    Attributes:
        problems: all that is wrong, each with its place in the file; the message has a line for each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CannotRun(ConfigError):
    """With this file, and in the environment of this process, one server can never run; the others can."""


class InputProgramFailed(ConfigError):
    """The program of a `command` input gave no value; it may give one another time."""


def wrong_fields(error: ValidationError) -> list[tuple[str, str]]:
    """The path of each field that is wrong, and why."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return [(field_of(one), reason_of(one)) for one in errors]
