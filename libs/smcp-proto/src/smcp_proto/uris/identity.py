"""What of a URI says which resource it names. Pure."""

from typing import Final

from smcp_proto.uris.dpe import DPE
from smcp_proto.uris.window import WINDOW

HOSTED: Final = (DPE, WINDOW)
"""Schemes whose URIs are routed by their host."""


def scheme_of(uri: str) -> str:
    """In lower case, as schemes are compared (RFC 3986, 3.1); the whole where there is no colon."""
    return uri.partition(":")[0].lower()


def without_query(uri: str) -> str:
    """What identifies a resource: the query of a `dpe://` URI says how it is shown, a `window://` URI has none."""
    return uri.partition("?")[0] if scheme_of(uri) in HOSTED else uri
