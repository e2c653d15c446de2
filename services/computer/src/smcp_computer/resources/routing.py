"""Which MCP servers of a Computer a URI belongs to. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from smcp_proto.hosts import host_of
from smcp_proto.server_order import server_order
from smcp_proto.uris import WINDOW, WindowUri, parse_window_uri

HOSTED: Final = ("dpe", "window")
"""Schemes whose URIs are routed by their host."""


@dataclass(frozen=True)
class Served:
    """What one MCP server lists."""

    server: str
    uris: Collection[str]
    templates: Sequence[str] = ()
    """Their `uriTemplate`."""

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Of its `dpe://` and `window://` URIs and templates."""
        hosts = {host_of(uri) for uri in self.uris} | {template_host(template) for template in self.templates}
        return frozenset(host for host in hosts if host is not None)

    @cached_property
    def windows(self) -> Mapping[WindowUri, str]:
        """Its `window://` URIs by the windows that they name; of several that name one the first."""
        found: dict[WindowUri, str] = {}
        for uri in self.uris:
            window = window_uri(uri)
            if window is not None:
                found.setdefault(window, uri)
        return found

    def listed(self, uri: str) -> str | None:
        """The URI by which it knows what `uri` names; None: it does not list that.

        A window is known by host and path (desktop.txt, Window URI): its server is asked for the URI that it lists,
        also where that has a query. The query of a `dpe://` URI says how a document is shown, and stays.
        """
        if uri in self.uris:
            return uri
        if scheme_of(uri) == WINDOW:
            window = window_uri(uri)
            return None if window is None else self.windows.get(window)
        return uri if without_query(uri) in self.uris else None


def candidates(uri: str, servers: Iterable[Served], history: Sequence[str]) -> list[str]:
    """The servers that may serve `uri`, the most likely one first.

    Those that list it; else, for `dpe://` and `window://`, those that list something of its host; else those of which a
    template fits. Among several the one used last comes first, then by name.

    Args:
        history: the MCP servers of the tool calls, the oldest call first.
    """
    servers = list(servers)
    found = listed_by(uri, servers)
    if not found and scheme_of(uri) in HOSTED:
        host = host_of(uri)
        found = [each.server for each in servers if host is not None and host in each.hosts]
    elif not found:
        found = [each.server for each in servers if any(fits(template, uri) for template in each.templates)]
    return server_order(found, history)


def listed_by(uri: str, servers: Iterable[Served]) -> list[str]:
    """The servers that list what `uri` names."""
    return [each.server for each in servers if each.listed(uri) is not None]


def template_candidates(template: str, servers: Iterable[Served], history: Sequence[str]) -> list[str]:
    """The servers that may complete the arguments of a template: those that list it, else those of its host."""
    servers = list(servers)
    found = [each.server for each in servers if template in each.templates]
    if not found and (host := template_host(template)) is not None:
        found = [each.server for each in servers if host in each.hosts]
    return server_order(found, history)


def template_host(template: str) -> str | None:
    """The host of a `dpe://` or `window://` template; None for others, and where the host is not fixed."""
    scheme, separator, rest = template.partition("://")
    host = rest.partition("/")[0]
    return host_of(f"{scheme}{separator}{host}") if "{" not in host else None


def fits(template: str, uri: str) -> bool:
    """Whether a URI may be an expansion of a template (RFC 6570): its fixed parts are there, in their order.

    The expressions between them match anything: what a server does not have it says itself.
    """
    first, *others = _fixed_parts(template)
    if not others:
        return uri == first
    if not uri.startswith(first):
        return False
    at, last = len(first), others.pop()
    for part in others:
        found = uri.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(uri) - len(last) >= at and uri.endswith(last)


def scheme_of(uri: str) -> str:
    """In lower case, as schemes are compared (RFC 3986, 3.1); the whole where there is no colon."""
    return uri.partition(":")[0].lower()


def window_uri(text: str) -> WindowUri | None:
    """The window that a URI names; None: it names none."""
    if scheme_of(text) != WINDOW:
        return None
    try:
        return parse_window_uri(text).uri
    except ValueError:
        return None


def is_same(one: str, other: str) -> bool:
    """Whether two URIs name one resource: they are equal, or name one window."""
    window = window_uri(one)
    return one == other or (window is not None and window == window_uri(other))


def _fixed_parts(template: str) -> list[str]:
    """What stands before, between and behind the expressions in braces."""
    head, *expressions = template.split("{")
    return [head, *(expression.partition("}")[2] for expression in expressions)]


def without_query(uri: str) -> str:
    """What identifies a resource: the query of a `dpe://` URI says how it is shown, a `window://` URI has none."""
    return uri.partition("?")[0] if scheme_of(uri) in HOSTED else uri
