"""What Computers list of their resources, as MCP's own structures: dicts with types. Fields left out are not there."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NotRequired, TypedDict

SKIPPED: Final = ("a2c_skipped", "a2c_skipped_servers")
"""In the `meta` of a page: the Computers that are missing from a list over the office, and the MCP servers from a
Computer's."""


class Resource(TypedDict):
    """A resource as its MCP server lists it (computer.txt, resources chapter, 3); what else the server says of it is
    there, too."""

    uri: str
    name: str
    title: NotRequired[str]
    description: NotRequired[str]
    mimeType: NotRequired[str]
    size: NotRequired[int]
    """Bytes."""
    annotations: NotRequired[dict[str, Any]]
    _meta: NotRequired[dict[str, Any]]
    serverId: NotRequired[str]
    """Its MCP server, where its Computer says so: ours does."""


class ResourceTemplate(TypedDict):
    """A template of URIs (RFC 6570) as its MCP server lists it; what else the server says of it is there, too."""

    uriTemplate: str
    name: str
    title: NotRequired[str]
    description: NotRequired[str]
    mimeType: NotRequired[str]
    serverId: NotRequired[str]
    """Its MCP server, where its Computer says so: ours does."""


class ResourceList(TypedDict):
    """One page of resources."""

    resources: list[Resource]
    nextCursor: NotRequired[str]
    """There are more: what `list_resources` takes as its `cursor`."""
    computer: NotRequired[str]
    """Whose they are."""
    meta: NotRequired[dict[str, Any]]
    """Names what could not be listed, where something could not: see `SKIPPED`."""


class ResourceTemplateList(TypedDict):
    """One page of templates."""

    resourceTemplates: list[ResourceTemplate]
    nextCursor: NotRequired[str]
    computer: NotRequired[str]
    meta: NotRequired[dict[str, Any]]


class Completion(TypedDict):
    """Values that complete an argument."""

    values: list[str]
    total: NotRequired[int]
    hasMore: NotRequired[bool]


def is_partial(page: Mapping[str, Any]) -> bool:
    """Whether a page says that something is missing from the list."""
    meta = page.get("meta")
    return isinstance(meta, dict) and any(meta.get(key) for key in SKIPPED)


class ListQuery(NamedTuple):
    """Whose resources were listed; None: those of all."""

    computer: str | None
    server: str | None
