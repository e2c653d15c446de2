"""What a user sets for an MCP server on this host, beside what the protocol's pages define.

The fields stand beside a server's own in the file, and as defaults for all servers under the top-level key `defaults`.
They say how a server runs here: Agents do not see them, and they are no part of `client:get_config`. `make docs` puts
them with their docstrings into the JSON Schema of the file.
"""

from typing import ClassVar, Final

from pydantic import BaseModel, ConfigDict

DEFAULTS: Final = "defaults"
"""The top-level key."""


class HostSettings(BaseModel):
    """One server's settings, with the defaults of the file filled in."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    LIVE: ClassVar[frozenset[str]] = frozenset({"unchecked_tools", "replace_content"})
    """Names of the fields that take effect while the server runs. A change of any other restarts it."""

    env_file: str | None = None
    """A file of `NAME=value` lines for the environment of a program, which its own `env` goes before."""
    unchecked_tools: tuple[str, ...] = ()
    """Original names of tools whose arguments are not checked against their schema; `*`: all."""
    replace_content: bool = False
    """What `ret_object_mapper` and `vrl` make of results replaces the content, instead of being added to `meta`."""
