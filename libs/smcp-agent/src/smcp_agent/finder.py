"""The documents of a Computer (finder.txt), as they come: fields that a server left out are not there."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from smcp_agent.cache import AnswerCache, Query
from smcp_agent.rpc import JsonObject, RpcClient
from smcp_proto.schemas import DEFAULT_LIMIT, DEFAULT_OFFSET, GetFinderReq, GetFinderRet


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
    ) -> JsonObject:
        """A part of a Computer's documents, asked of it now: the servers used last come first, then the newest.

        That is the protocol's GetFinderRet: `documents` (DPEDocumentSummary), `total_count` before `offset` and
        `limit`, and `a2c_as_listed`, how many documents' metadata the Computer does not know now: some may be missing.

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
    ) -> JsonObject:
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

    async def _get_finder(self, query: FinderQuery) -> JsonObject:
        request = self._finder_request(query)
        reply = await self._rpc.ask("client:get_finder", request, GetFinderRet, "documents", query.computer)
        return reply.model_dump(exclude_unset=True)


def _query(
    computer: str, keywords: Iterable[str] | None, file_type: str | None, offset: int, limit: int
) -> FinderQuery:
    if isinstance(keywords, str):  # else each of its letters would be a keyword
        keywords = (keywords,)
    return FinderQuery(computer, None if keywords is None else tuple(keywords), file_type, offset, limit)
