"""`client:get_finder`: one page of the catalog of all documents (finder.txt, Finder Organizer)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from smcp_bus import exact_json
from smcp_bus.dispatch import Call, RawJson
from smcp_computer.access import Access
from smcp_computer.mcp.errors import bad_field
from smcp_computer.metadata_cache import MetadataCache
from smcp_computer.reply_limits import Budget, reply_limit
from smcp_computer.resources.index import Listing
from smcp_computer.tools import History
from smcp_proto.errors import TooLarge
from smcp_proto.finder import organize_finder
from smcp_proto.schemas.finder import GetFinderReq

MAX_KEYWORDS: Final = 64
"""Each is looked for in every document."""
MAX_KEYWORD_LENGTH: Final = 1024
AS_LISTED: Final = "a2c_as_listed"
"""How many documents the Computer knows no metadata of now: what is answered may lack them, or have them elsewhere."""

Lists = Callable[[float], Awaitable[Mapping[str, Listing]]]
"""What each server that takes part lists now; given the seconds that there are for finding that out."""


@dataclass(eq=False)
class Finder:
    """Waits at most `wait_s` for metadata that are not read yet."""

    cache: MetadataCache
    lists: Lists
    history: History
    access: Access
    _: KW_ONLY
    wait_s: float
    max_body: int

    async def __call__(self, request: GetFinderReq, call: Call) -> RawJson:
        """One page.

        Raises:
            Malformed: too many or too long keywords.
            TooLarge: fewer documents (`limit`) may fit.
        """
        _check(request.keywords or ())
        budget = Budget(call, most=self.wait_s)
        lists = await self.lists(budget.left / 2)
        documents = await self.cache.documents(lists, timeout=budget.left)
        if hidden := self.access.hidden(call.caller):
            documents = [each for each in documents if each.server not in hidden]
            lists = {server: listing for server, listing in lists.items() if server not in hidden}
        found = organize_finder(
            documents,
            request.keywords,
            request.file_type,
            self.history.servers,
            offset=request.offset,
            limit=request.limit,
        )
        limit = reply_limit(call, self.max_body)
        rest = {"total_count": found.total_count, "req_id": request.req_id}
        if as_listed := self.cache.as_listed(lists):
            rest[AS_LISTED] = as_listed
        body = exact_json.written({"documents": found.documents, **rest})
        if len(body) > limit:
            details = {"size": len(body), "limit": limit}
            raise TooLarge("the page is too large: ask for fewer documents", details=details)
        return RawJson(body)


def _check(keywords: Sequence[str]) -> None:
    if len(keywords) > MAX_KEYWORDS:
        raise bad_field("keywords", f"more than {MAX_KEYWORDS}")
    for number, keyword in enumerate(keywords):
        if len(keyword) > MAX_KEYWORD_LENGTH:
            raise bad_field(f"keywords.{number}", f"longer than {MAX_KEYWORD_LENGTH} characters")
