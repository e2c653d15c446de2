"""Errors of a configuration, named so that a user can act on them."""


class ConfigError(Exception):
    """The file cannot be used as it is. The message names the server and the field."""


class MissingValue(ConfigError):
    """A placeholder of one server has no value; only that server cannot run."""
