"""The URI of a resource as an Agent asks for it: checked, and as its server knows it. Pure."""

from typing import Final

from smcp_proto.errors import Malformed
from smcp_proto.uris import DPE, WINDOW, parse_dpe_uri, parse_window_uri, scheme_of, without_query

URI_FIELD: Final = "payload.params.uri"


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
        raise Malformed(f"{URI_FIELD}: {error}", details={"field": URI_FIELD, "reason": str(error)}) from None
    return uri
