"""`client:get_finder`: one page of the catalog of all documents (finder.txt, Finder Organizer)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from smcp_bus.dispatch_types import Call, RawJson
from smcp_computer.finder.library import Library
from smcp_computer.finder.shelf import Listing
from smcp_computer.handlers.budget import Budget
from smcp_computer.in_flight import encode
from smcp_proto.errors import Malformed
from smcp_proto.finder import organize_finder
from smcp_proto.schemas.finder import GetFinderReq

MAX_KEYWORDS: Final = 64
"""Each is looked for in every document."""
MAX_KEYWORD_LENGTH: Final = 1024

Lists = Callable[[float], Awaitable[Mapping[str, Listing]]]
"""What each server that takes part lists now; given the seconds that there are for finding that out."""


class Finder:
    """Args:
    lists: the servers that take part.
    history: the MCP servers of the tool calls, the oldest call first.
    wait_s: how long metadata that are not read yet are waited for.
    """

    def __init__(self, library: Library, lists: Lists, history: Callable[[], Sequence[str]], *, wait_s: float) -> None:
        self._library = library
        self._lists = lists
        self._history = history
        self._wait_s = wait_s

    async def __call__(self, request: GetFinderReq, call: Call) -> RawJson:
        """One page.

        Raises:
            Malformed: too many or too long keywords.
        """
        _check(request)
        budget = Budget.of(call, most=self._wait_s)
        lists = await self._lists(budget.left / 2)
        documents = await self._library.documents(lists, timeout=budget.left)
        found = organize_finder(
            documents,
            request.keywords,
            request.file_type,
            self._history(),
            offset=request.offset,
            limit=request.limit,
        )
        reply = {"documents": found.documents, "total_count": found.total_count, "req_id": request.req_id}
        return RawJson(encode(reply))


def _check(request: GetFinderReq) -> None:
    keywords = request.keywords or ()
    if len(keywords) > MAX_KEYWORDS:
        raise _refused("keywords", f"more than {MAX_KEYWORDS}")
    for number, keyword in enumerate(keywords):
        if len(keyword) > MAX_KEYWORD_LENGTH:
            raise _refused(f"keywords.{number}", f"longer than {MAX_KEYWORD_LENGTH} characters")


def _refused(field: str, reason: str) -> Malformed:
    return Malformed(f"{field}: {reason}", details={"field": field, "reason": reason})
