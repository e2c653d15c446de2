"""Which Agent wants to hear of which resources of one Computer on Socket.IO. Pure.

What is kept of a URI is a digest, so an entry costs the same whatever an Agent writes into it; of a document without
its query, which says how it is shown. A subscription belongs to the Agent's membership: it is kept with the epoch of
that membership's enter, and ends with a leave that is newer. It counts from the moment when the Computer is asked: what
it tells before its answer is here is not lost.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import orjson

from smcp_bus.headers import AGENT_EPOCH
from smcp_proto.errors import RateLimited
from smcp_proto.schemas.resources import SmcpCode
from smcp_proto.uris.above import resources_above
from smcp_proto.uris.identity import without_query

MAX_SUBSCRIPTIONS: Final = 1000
"""That one Agent may have at one Computer; above it 429."""


@dataclass(eq=False, slots=True)
class Asked:
    """A subscription that the Computer was asked for and has not granted yet."""

    agent: str
    epoch: int
    uri: bytes
    server: str | None
    ended: bool = False
    """The Agent has left meanwhile."""


@dataclass(eq=False, slots=True)
class _Agent:
    epochs: dict[bytes, dict[str | None, int]] = field(default_factory=dict)
    """By the digest of a URI and the server of which it was subscribed (None where the Agent named none): the epoch of
    the membership to which that belongs."""
    count: int = 0
    asked: set[Asked] = field(default_factory=set)

    def has(self, uri: bytes, server: str | None) -> bool:
        return server in self.epochs.get(uri, ())

    def add(self, asked: Asked) -> None:
        servers = self.epochs.setdefault(asked.uri, {})
        self.count += asked.server not in servers
        servers[asked.server] = max(asked.epoch, servers.get(asked.server, 0))

    def servers(self, uris: Collection[bytes]) -> set[str | None]:
        """Those of which one of these is subscribed, or asked for."""
        granted = {server for uri in uris for server in self.epochs.get(uri, ())}
        return granted | {asked.server for asked in self.asked if asked.uri in uris and not asked.ended}

    def drop(self, uri: bytes, server: str | None) -> None:
        servers = self.epochs[uri]
        del servers[server]
        self.count -= 1
        if not servers:
            del self.epochs[uri]


class Subscriptions:
    """The table of one Computer.

    Attributes:
        unknown_since: not all is known that was subscribed before this epoch: the Computer came here from another
            gateway then; None: the table is all there is.
    """

    def __init__(self, *, most: int = MAX_SUBSCRIPTIONS) -> None:
        self.unknown_since: int | None = None
        self._most = most
        self._agents: dict[str, _Agent] = {}

    @property
    def idle(self) -> bool:
        """Whether nobody is told of anything."""
        return not self._agents and self.unknown_since is None

    def __len__(self) -> int:
        return sum(agent.count for agent in self._agents.values())

    def ask(self, agent: str, epoch: int, server: str | None, uri: str) -> Asked:
        """The Computer is about to be asked; `settle` it whatever comes of that.

        Args:
            epoch: of the enter of the Agent's membership.

        Raises:
            RateLimited: the Agent has as many as it may have (`details.limit`).
        """
        asked = Asked(agent, epoch, _digest(without_query(uri)), server)
        known = self._agents.setdefault(agent, _Agent())
        if not known.has(asked.uri, server) and known.count + len(known.asked) >= self._most:
            raise RateLimited(
                "too many subscriptions at this Computer; end some of them first",
                details={"smcp_code": SmcpCode.RATE_LIMITED.value, "limit": self._most},
            )
        known.asked.add(asked)
        return asked

    def settle(self, asked: Asked, *, granted: bool) -> None:
        """What was asked is over. Idempotent."""
        known = self._agents.get(asked.agent)
        if known is not None and asked in known.asked:
            known.asked.discard(asked)
            if granted and not asked.ended:
                known.add(asked)
        self._forget(asked.agent)

    def end(self, agent: str, server: str | None, uri: str) -> None:
        """The Agent has unsubscribed.

        Args:
            server: None: from the resource of whichever server.
        """
        known, digest = self._agents.get(agent), _digest(without_query(uri))
        if known is not None:
            for at in list(known.epochs.get(digest, ())):
                if server in (None, at):
                    known.drop(digest, at)
        self._forget(agent)

    def left(self, agent: str, epoch: int | None) -> None:
        """The Agent has left the office.

        Args:
            epoch: of the leave; None: it was found out that it is not there, whatever its last leave was.
        """
        self._end(agent, lambda since: epoch is None or epoch > since)
        if self.unknown_since is not None and (epoch is None or epoch > self.unknown_since):
            self.unknown_since = None  # an office has one Agent: whatever was subscribed elsewhere was this one's

    def began(self, epoch: int) -> None:
        """The membership of the office's Agent began after this epoch: what was subscribed before that is over,
        whichever Agent it was. What is not known to be so old stays."""
        for agent in list(self._agents):
            self._end(agent, lambda since: 0 < since < epoch)
        if self.unknown_since is not None and 0 < self.unknown_since < epoch:
            self.unknown_since = None

    def agents(self, server: str | None, uri: str) -> Iterator[str]:
        """Who subscribed to the resource that changed, or to one that it is a part of; each once.

        Args:
            server: the MCP server that it is told of; None, or a subscription without one, means any.
        """
        digests = [_digest(each) for each in (uri, *resources_above(uri))] if self._agents else []
        for name, agent in self._agents.items():
            servers = agent.servers(digests)
            if servers and (server is None or server in servers or None in servers):
                yield name

    def whole(self, agent: str, uri: str) -> str:
        """What an Agent subscribed to: `uri`, or the nearest resource above it; `uri` where there is none."""
        known = self._agents.get(agent)
        above = (each for each in (uri, *resources_above(uri)) if known is not None and known.servers([_digest(each)]))
        return next(above, uri)

    def _end(self, agent: str, is_over: Callable[[int], bool]) -> None:
        """End what an Agent has subscribed, or asked for, of whose epochs that is true."""
        known = self._agents.get(agent)
        if known is None:
            return
        for uri, servers in list(known.epochs.items()):
            for server, since in list(servers.items()):
                if is_over(since):
                    known.drop(uri, server)
        for asked in known.asked:
            asked.ended = asked.ended or is_over(asked.epoch)
        self._forget(agent)

    def _forget(self, agent: str) -> None:
        """Keep nothing of an Agent that has nothing here."""
        known = self._agents.get(agent)
        if known is not None and not known.count and not known.asked:
            del self._agents[agent]


def granted(answer: bytes) -> bool:
    """Whether a Computer has answered a JSON-RPC request with a result."""
    try:
        envelope = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return False
    payload = envelope.get("payload") if isinstance(envelope, dict) else None
    return isinstance(payload, dict) and payload.get("error") is None and payload.get("result") is not None


def epoch_of(headers: Mapping[str, str]) -> int:
    """Of the Agent's membership, as its gateway says it; 0, before all of them, where it does not."""
    said = headers.get(AGENT_EPOCH, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 20 else 0


def _digest(uri: str) -> bytes:
    return blake2b(uri.encode(errors="surrogatepass"), digest_size=16).digest()
