"""The documents of a Computer (finder.txt), as they come: fields that a server left out are not there."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NotRequired, TypedDict, cast

from smcp_agent.cache import AnswerCache, Query
from smcp_agent.rpc import RpcClient
from smcp_proto.schemas import DEFAULT_LIMIT, DEFAULT_OFFSET, GetFinderReq, GetFinderRet


class DocumentSummary(TypedDict):
    """A document as the finder lists it."""

    doc_ref: str
    uri: str
    """`dpe://host/doc-ref`: what `read_resource` takes, with `/pages/N` or `/elements/ID` behind it."""
    file_uri: NotRequired[str]
    file_type: NotRequired[str]
    title: NotRequired[str]
    page_count: NotRequired[int]
    """Legal pages are 0 to `page_count - 1`."""
    keywords: NotRequired[list[str]]
    summary: NotRequired[str]
    last_modified: NotRequired[str]
    """ISO 8601."""


class Finder(TypedDict):
    """The protocol's GetFinderRet: a part of a Computer's documents."""

    documents: list[DocumentSummary]
    total_count: int
    """Documents that match, before `offset` and `limit`."""
    req_id: str
    a2c_as_listed: NotRequired[int]
    """Documents whose metadata the Computer does not know now: they were searched and ordered as `resources/list`
    describes them, so some may be missing here or stand elsewhere. Not there: none."""


@dataclass(frozen=True)
class FinderQuery(Query):
    """A part of the documents was asked for."""

    computer: str
    keywords: tuple[str, ...] | None
    file_type: str | None
    offset: int
    limit: int


class FinderMethods:
    """What `SmcpAgent` can do with documents. Their contents come by `read_resource`."""

    _rpc: RpcClient
    _answers: AnswerCache

    async def get_finder(
        self,
        computer: str,
        *,
        keywords: Iterable[str] | None = None,
        file_type: str | None = None,
        offset: int = DEFAULT_OFFSET,
        limit: int = DEFAULT_LIMIT,
    ) -> Finder:
        """A part of a Computer's documents, asked of it now: the servers used last come first, then the newest.

        Args:
            keywords: documents that hold any of them in title, keywords or summary; None, or none: all.
            file_type: documents of exactly this type (`xlsx`).
            offset, limit: which part: from 0; 1 to 100 documents.

        Raises SmcpError: as `call_tool`.
        """
        return await self._get_finder(_query(computer, keywords, file_type, offset, limit))

    async def finder(
        self,
        computer: str,
        *,
        keywords: Iterable[str] | None = None,
        file_type: str | None = None,
        offset: int = DEFAULT_OFFSET,
        limit: int = DEFAULT_LIMIT,
    ) -> Finder:
        """As `get_finder`, from the cache where nothing changed since and nothing was missing (`a2c_as_listed`)."""
        query = _query(computer, keywords, file_type, offset, limit)
        self._finder_request(query)  # what cannot be asked for cannot be kept either
        return await self._answers.get(
            query,
            lambda: self._get_finder(query),
            keep=lambda found: not found.get("a2c_as_listed"),
        )

    def _finder_request(self, query: FinderQuery) -> GetFinderReq:
        fields = asdict(query) | {"keywords": None if query.keywords is None else list(query.keywords)}
        return self._rpc.query(GetFinderReq, **fields)

    async def _get_finder(self, query: FinderQuery) -> Finder:
        request = self._finder_request(query)
        reply = await self._rpc.ask("client:get_finder", request, GetFinderRet, "documents", query.computer)
        # checked above: what stands in it has the types that the page says
        return cast("Finder", reply.model_dump(exclude_unset=True))


def _query(
    computer: str, keywords: Iterable[str] | None, file_type: str | None, offset: int, limit: int
) -> FinderQuery:
    if isinstance(keywords, str):  # else each of its letters would be a keyword
        keywords = (keywords,)
    return FinderQuery(computer, None if keywords is None else tuple(keywords), file_type, offset, limit)
