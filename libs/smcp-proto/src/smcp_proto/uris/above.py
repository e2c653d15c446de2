"""Which resources a URI lies below."""

import re
from collections.abc import Iterator
from typing import Final

MAX_ABOVE: Final = 64
"""A URI may have thousands of segments, and nobody subscribes so far above."""

_SLASH: Final = re.compile("/")


def resources_above(uri: str) -> Iterator[str]:
    """The URIs of which `uri` is a part, the nearest first: without its query, then without its last segment, and so
    on, each with and without a slash at its end; at most `MAX_ABOVE`.

    MCP lets a server tell of the change of such a part to who subscribed to the whole.
    """
    path = uri.partition("?")[0]
    authority = path.find("://") + 3
    slashes = [slash.start() for slash in _SLASH.finditer(path, authority)][-MAX_ABOVE:]
    ends = {len(path), *(slash + 1 for slash in slashes), *(slash for slash in slashes if slash > authority)}
    for end in sorted(ends - {len(uri)}, reverse=True)[:MAX_ABOVE]:
        yield uri[:end]
