"""What is odd in the parts of documents that Agents read: said in the log, once; the contents go as they are."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from smcp_computer.mcp.events import ServerEvent, ServerReady
from smcp_computer.resources.causes import Causes
from smcp_proto.finder import not_in_format, unknown_categories
from smcp_proto.uris import DPE, DpeUri, parse_dpe_uri, scheme_of

_log = logging.getLogger("smcp_computer.finder")

LARGEST: Final = 1024 * 1024
"""Characters of an answer that is looked at: reading it once more takes time from everything else."""
PAGE_LEVEL: Final = 2
"""From this level on there are elements."""


class OddAnswers:
    """`on_event` is to be told of what happens to the MCP servers."""

    def __init__(self) -> None:
        self._causes = Causes(_log)

    def look(self, server: str, uri: str, result: Mapping[str, Any]) -> None:
        """Warn of a page or element with unknown categories, and of an answer in another format than was asked for.

        Args:
            uri: that was asked for.
            result: of `resources/read`.
        """
        if scheme_of(uri) != DPE:
            return
        try:
            asked = parse_dpe_uri(uri)
        except ValueError:
            return
        for what in _odd(server, uri, asked, result):
            self._causes.warn(server, f"{uri[:256]}: {what}")

    def on_event(self, event: ServerEvent) -> None:
        """A server that was started anew: what was said in the log of it may be said again."""
        if isinstance(event, ServerReady):
            self._causes.forget(event.server)


def _odd(server: str, uri: str, asked: DpeUri, result: Mapping[str, Any]) -> Iterator[str]:
    texts = (content.get("text") for content in result["contents"] if isinstance(content, Mapping))
    text = next((text for text in texts if isinstance(text, str)), None)
    if text is None or len(text) > LARGEST:
        return
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        yield "what was read is not JSON"
        return
    doubts = not_in_format(server, uri, answer, asked.format)
    if asked.level >= PAGE_LEVEL:
        doubts += unknown_categories(server, uri, answer)
    for doubt in doubts:
        yield doubt.message
