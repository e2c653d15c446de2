"""The subscriptions of Agents to resources of one Socket.IO Computer.

URIs are compared without their query, which only selects a rendering. A subscription counts from the moment when the
Computer is asked, so that no update before its answer is lost. It ends when the Agent leaves, and after any
interruption: then the Agent is told to subscribe again (ADR 0019).
"""

from collections.abc import Awaitable, Callable, Iterator
from hashlib import blake2b

import orjson

from smcp_bus.dispatch import Answer
from smcp_bus.exact_json import SMALL_BYTES
from smcp_proto.errors import ANSWER_TOO_LARGE, MAX_SUBSCRIPTIONS, TooLarge, too_many_subscriptions
from smcp_proto.schemas import SubscribeResourceReq, UnsubscribeResourceReq
from smcp_proto.uris import resources_above, without_query

Ask = Callable[[], Awaitable[Answer]]


class Subscriptions:
    """(MCP server or None, digest of the URI) by Agent; the digest bounds the size of an entry. `count` is given each
    change of their number, and raises RateLimited where there may be no more."""

    def __init__(self, count: Callable[[int], None] = lambda change: None) -> None:
        self._count = count
        self._agents: dict[str, set[tuple[str | None, bytes]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._agents.values()))

    def add(self, agent: str, server: str | None, uri: str) -> bool:
        """Add a subscription before asking the Computer. Returns whether it is new.

        Raises RateLimited: the Agent has `details.limit` subscriptions already, or its office or Computer has.
        """
        mine, key = self._agents.setdefault(agent, set()), (server, _digest(uri))
        if key in mine:
            return False
        if len(mine) >= MAX_SUBSCRIPTIONS:
            raise too_many_subscriptions(MAX_SUBSCRIPTIONS)
        self._count(1)
        mine.add(key)
        return True

    def end(self, agent: str, server: str | None, uri: str) -> None:
        """The Agent has unsubscribed (`server` None: at all servers)."""
        digest, mine = _digest(uri), self._agents.get(agent, set())
        ended = {(at, subscribed) for at, subscribed in mine if subscribed == digest and server in (None, at)}
        self._count(-len(ended))
        mine -= ended

    async def subscribe(self, request: SubscribeResourceReq, ask: Ask) -> Answer:
        """Ask the Computer, and keep the subscription if it grants it. Raises as `add`, `ask` and `granted`."""
        agent, server, uri = request.agent or "", request.serverId, request.payload.params.uri
        is_new, is_granted = self.add(agent, server, uri), False
        mine = self._agents[agent]  # not used any more if the Agent leaves meanwhile
        try:
            answer = await ask()
            is_granted = granted(answer.body)
        finally:
            key = (server, _digest(uri))
            if is_new and not is_granted and key in mine and self._agents.get(agent) is mine:
                self._count(-1)
                mine.remove(key)
        if is_granted and self._agents.get(agent) is mine:
            self.add(agent, server, uri)  # an unsubscribe may have ended it meanwhile
        return answer

    async def unsubscribe(self, request: UnsubscribeResourceReq, ask: Ask) -> Answer:
        answer = await ask()
        if granted(answer.body):
            self.end(request.agent or "", request.serverId, request.payload.params.uri)
        return answer

    def left(self, agent: str) -> bool:
        """The Agent has left the office. Returns whether it had subscriptions."""
        ended = len(self._agents.pop(agent, ()))
        self._count(-ended)
        return ended > 0

    def clear(self) -> bool:
        ended, self._agents = len(self), {}
        self._count(-ended)
        return ended > 0

    def agents(self, server: str | None, uri: str) -> Iterator[str]:
        """The Agents that subscribed to the changed resource, or to one that contains it, at that MCP server. Without
        one here, or in the subscription, any is meant."""
        digests = {_digest(each) for each in (uri, *resources_above(uri))} if self._agents else set()
        for agent, mine in self._agents.items():
            if any(each in digests and (server is None or at in (None, server)) for at, each in mine):
                yield agent


def granted(answer: bytes) -> bool:
    """Whether the Computer granted the request. Raises TooLarge: a valid result is empty."""
    if len(answer) > SMALL_BYTES:
        raise TooLarge(ANSWER_TOO_LARGE, details={"size": len(answer), "limit": SMALL_BYTES})
    try:
        envelope = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return False
    payload = envelope.get("payload") if isinstance(envelope, dict) else None
    return isinstance(payload, dict) and payload.get("error") is None and payload.get("result") is not None


def _digest(uri: str) -> bytes:
    return blake2b(without_query(uri).encode(errors="surrogatepass"), digest_size=16).digest()
