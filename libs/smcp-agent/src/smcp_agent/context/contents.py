"""The contents of a resource, typed."""

import json
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from smcp_agent.errors import BadReply
from smcp_agent.models import reply_of
from smcp_agent.results import ResourceContent
from smcp_proto.schemas import ResourceContents as WireContents
from smcp_proto.schemas.base import Wire

DPE: Final = "dpe:"


@dataclass(frozen=True, slots=True)
class ResourceContents:
    """What `resources/read` gave: usually one content."""

    uri: str
    """What was read."""
    contents: tuple[ResourceContent, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """MCP's ReadResourceResult as it came over the wire."""

    @property
    def text(self) -> str:
        """All text, one content per paragraph; empty where there is none."""
        return "\n".join(each.text for each in self.contents if each.text is not None)

    @property
    def binary(self) -> bool:
        """Whether there are bytes and no text."""
        return bool(self.contents) and all(each.text is None for each in self.contents)

    def blob(self) -> bytes:
        """The bytes of what is binary.

        Raises:
            BadReply: they are not in base64; there are none, or several contents with bytes.
        """
        blobs = [each.blob for each in self.contents if each.blob is not None]
        if len(blobs) != 1:
            raise BadReply(f"{self.uri} has {len(blobs)} binary contents, not one: `contents` holds them")
        try:
            return b64decode(blobs[0], validate=True)
        except ValueError as error:
            raise BadReply(f"the binary content of {self.uri} is not in base64") from error

    def json(self) -> Any:
        """The JSON that the text is.

        Raises:
            BadReply: it is none.
        """
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise BadReply(f"{self.uri} is no JSON: {error}") from error

    def value(self) -> Any:
        """JSON where a document's URI (`dpe:`) was read and its text is JSON by its MIME type, or just is and has none;
        else the text; the bytes of what is binary. An empty text where there is nothing at all.

        Raises:
            BadReply: it is not what it is said to be.
        """
        if self.binary:
            return self.blob()
        if not self.uri.lower().startswith(DPE):
            return self.text
        if any(_is_json(each.mime_type) for each in self.contents):
            return self.json()
        if all(each.mime_type is None for each in self.contents):
            with suppress(BadReply):
                return self.json()
        return self.text


class _ReadResult(Wire):
    contents: list[WireContents]


def resource_contents(uri: str, result: Mapping[str, Any], what: str = "") -> ResourceContents:
    """The typed contents for MCP's ReadResourceResult; `what` names it for people.

    Raises:
        BadReply: it is none.
    """
    contents = tuple(
        ResourceContent(each.uri, each.mimeType, each.text, each.blob)
        for each in reply_of(_ReadResult, result, what or f"the content of {uri}").contents
    )
    return ResourceContents(uri, contents, result)


def _is_json(mime_type: str | None) -> bool:
    kind = (mime_type or "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
