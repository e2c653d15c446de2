"""Which MCP servers of a Computer a URI belongs to. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

from smcp_computer.resources.replies import bad_field
from smcp_proto.sorting import server_order
from smcp_proto.uris import (
    DPE,
    HOSTED,
    WINDOW,
    WindowUri,
    host_of,
    parse_dpe_uri,
    parse_window_uri,
    scheme_of,
    without_query,
)

NOTHING_CHOSEN: Final[Mapping[str, str]] = MappingProxyType({})

DocumentId = tuple[str, str | None]
"""Host and document (decoded); None: the host's catalog, level 0."""

_DOCUMENT_ARGUMENT: Final = re.compile(r"dpe://[^/{}]+/\{(\w+)\}", re.ASCII | re.IGNORECASE)
"""The argument of a template that stands for the document."""


@dataclass(frozen=True)
class Served:
    server: str
    uris: Collection[str]
    templates: Sequence[str] = ()
    """Their `uriTemplate`."""

    @cached_property
    def hosts(self) -> frozenset[str]:
        hosts = {host_of(uri) for uri in self.uris} | {template_host(template) for template in self.templates}
        return frozenset(host for host in hosts if host is not None)

    @cached_property
    def windows(self) -> Mapping[WindowUri, str]:
        found: dict[WindowUri, str] = {}
        for uri in self.uris:
            window = window_uri(uri)
            if window is not None:
                found.setdefault(window, uri)
        return found

    @cached_property
    def documents(self) -> frozenset[DocumentId]:
        """The documents and catalogs that it lists, or of which it lists a part."""
        return frozenset(document for uri in self.uris if (document := document_of(uri)) is not None)

    def distance(self, uri: str) -> int:
        """0: it lists the document (or, of level 0, the catalog) that a `dpe://` URI is of, whatever its level; 1: it
        lists level 0 of its host; 2: neither.
        """
        if scheme_of(uri) != DPE:
            return 2
        # the very text is looked for first: to parse ten thousand URIs takes a while
        if "/".join(without_query(uri).split("/", 4)[:4]) in self.uris or document_of(uri) in self.documents:
            return 0
        return 1 if (host_of(uri), None) in self.documents else 2

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
    template fits. Of those that share a host, who lists the document of a page or an element comes first, then who
    lists the host's catalog. Among several that are alike the one used last comes first, then by name.

    Args:
        history: the MCP servers of the tool calls, the oldest call first.
    """
    servers = list(servers)
    found = listed_by(uri, servers)
    if not found and scheme_of(uri) in HOSTED:
        return _of_host(uri, servers, history)
    if not found:
        found = [each.server for each in servers if any(fits(template, uri) for template in each.templates)]
    return server_order(found, history)


def listed_by(uri: str, servers: Iterable[Served]) -> list[str]:
    return [each.server for each in servers if each.listed(uri) is not None]


def template_candidates(
    template: str, servers: Iterable[Served], history: Sequence[str], chosen: Mapping[str, str] = NOTHING_CHOSEN
) -> list[str]:
    """The servers that may complete the arguments of a template: those that list it, else those of its host.

    Args:
        chosen: arguments that are chosen already. Of several servers those come alone that list the chosen document.
    """
    servers, host = list(servers), template_host(template)
    found = [each for each in servers if template in each.templates]
    if not found and host is not None:
        found = [each for each in servers if host in each.hosts]
    argument = _DOCUMENT_ARGUMENT.match(template)
    if len(found) > 1 and argument is not None and argument[1] in chosen:
        found = [each for each in found if (host, chosen[argument[1]]) in each.documents] or found
    return server_order([each.server for each in found], history)


def template_host(template: str) -> str | None:
    """The host of a `dpe://` or `window://` template; None for others, and where the host is not fixed."""
    scheme, separator, rest = template.partition("://")
    host = rest.partition("/")[0]
    return host_of(f"{scheme}{separator}{host}") if "{" not in host else None


def fits(template: str, uri: str) -> bool:
    """Whether a URI may be an expansion of a template (RFC 6570): its fixed parts are there, in their order.

    The expressions between them match anything: what a server does not have it says itself.
    """
    first, *expressions = template.split("{")
    others = [expression.partition("}")[2] for expression in expressions]
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


def document_of(uri: str) -> DocumentId | None:
    """The document, or the catalog, that a `dpe://` URI of any level is of; None: it is none."""
    if scheme_of(uri) != DPE:
        return None
    try:
        parsed = parse_dpe_uri(uri)
    except ValueError:
        return None
    return parsed.host, parsed.doc_ref


def window_uri(text: str) -> WindowUri | None:
    """The window that a URI names; None: it names none."""
    if scheme_of(text) != WINDOW:
        return None
    try:
        return parse_window_uri(text)
    except ValueError:
        return None


def is_same(one: str, other: str) -> bool:
    """Whether two URIs name one resource: they are equal, or name one window."""
    window = window_uri(one)
    return one == other or (window is not None and window == window_uri(other))


def _of_host(uri: str, servers: Iterable[Served], history: Sequence[str]) -> list[str]:
    host = host_of(uri)
    found = {each.server: each for each in servers if host is not None and host in each.hosts}
    order = server_order(found, history)
    return sorted(order, key=lambda server: found[server].distance(uri)) if len(order) > 1 else order


def checked_uri(uri: str) -> str:
    """The URI to ask a server for, where none lists it just so: what a server lists it knows, whatever its form.

    A `dpe://` URI has to be one (finder.txt, 校验规则), and keeps its query; of a `window://` URI the query is dropped.

    Raises:
        Malformed: it is a `dpe://` or `window://` URI that is not valid. `details.reason` begins with the part or the
            parameter that is wrong.
    """
    try:
        match scheme_of(uri):
            case scheme if scheme == DPE:
                parse_dpe_uri(uri)
            case scheme if scheme == WINDOW:
                parse_window_uri(uri)
                return without_query(uri)
    except ValueError as error:
        raise bad_field("payload.params.uri", error) from None
    return uri
