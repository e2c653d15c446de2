"""Which Agent wants to hear of which resources of one Computer on Socket.IO. Pure.

What is kept of a URI is a digest, so an entry costs the same whatever an Agent writes into it. A subscription belongs
to the Agent's membership: it is kept with the epoch of that membership's enter, and ends with a leave that is newer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import orjson

from smcp_bus.headers import AGENT_EPOCH
from smcp_proto.errors import RateLimited
from smcp_proto.schemas.resources import SmcpCode
from smcp_proto.uris.above import resources_above

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
    epoch: int
    servers: dict[bytes, set[str | None]] = field(default_factory=dict)
    """By the digest of a URI: the servers of which it was subscribed; None where the Agent named none."""
    count: int = 0


class Subscriptions:
    """The table of one Computer.

    Attributes:
        unknown_since: epoch of the Computer's own membership, where it came here from another gateway and what was
            subscribed there is not known; None: the table is all there is.
    """

    def __init__(self, *, most: int = MAX_SUBSCRIPTIONS) -> None:
        self.unknown_since: int | None = None
        self._most = most
        self._agents: dict[str, _Agent] = {}
        self._asked: set[Asked] = set()

    def __len__(self) -> int:
        return sum(agent.count for agent in self._agents.values())

    def ask(self, agent: str, epoch: int, server: str | None, uri: str) -> Asked:
        """The Computer is about to be asked; `settle` it whatever comes of that.

        Args:
            epoch: of the enter of the Agent's membership.

        Raises:
            RateLimited: the Agent has as many as it may have (`details.limit`).
        """
        asked = Asked(agent, epoch, _digest(uri), server)
        known = self._agents.get(agent)
        if known is None or server not in known.servers.get(asked.uri, ()):
            under_way = sum(other.agent == agent for other in self._asked) if len(self._asked) else 0
            if (known.count if known is not None else 0) + under_way >= self._most:
                raise RateLimited(
                    "too many subscriptions at this Computer; end some of them first",
                    details={"smcp_code": SmcpCode.RATE_LIMITED.value, "limit": self._most},
                )
        self._asked.add(asked)
        return asked

    def settle(self, asked: Asked, *, granted: bool) -> None:
        """What was asked is over. Idempotent."""
        if asked not in self._asked:
            return
        self._asked.discard(asked)
        if not granted or asked.ended:
            return
        agent = self._agents.setdefault(asked.agent, _Agent(asked.epoch))
        agent.epoch = max(agent.epoch, asked.epoch)
        servers = agent.servers.setdefault(asked.uri, set())
        agent.count += asked.server not in servers
        servers.add(asked.server)

    def end(self, agent: str, server: str | None, uri: str) -> None:
        """The Agent has unsubscribed.

        Args:
            server: None: from the resource of whichever server.
        """
        known, digest = self._agents.get(agent), _digest(uri)
        servers = known.servers.get(digest) if known is not None else None
        if known is None or not servers:
            return
        ended = servers & {server} if server is not None else set(servers)
        servers -= ended
        known.count -= len(ended)
        if not servers:
            del known.servers[digest]
        if not known.count:
            del self._agents[agent]

    def left(self, agent: str, epoch: int | None) -> None:
        """The Agent has left the office.

        Args:
            epoch: of the leave; None: it was found out that it is not there, whatever its last leave was.
        """
        known = self._agents.get(agent)
        if known is not None and (epoch is None or epoch > known.epoch):
            del self._agents[agent]
        for asked in self._asked:
            if asked.agent == agent and (epoch is None or epoch > asked.epoch):
                asked.ended = True
        if self.unknown_since is not None and (epoch is None or epoch > self.unknown_since):
            self.unknown_since = None  # an office has one Agent: whatever was subscribed elsewhere was this one's

    def agents(self, server: str | None, uri: str) -> Iterator[str]:
        """Who subscribed to the resource that changed, or to one that it is a part of; each once.

        Args:
            server: the MCP server that it is told of; None, or a subscription without one, means any.
        """
        digests = [_digest(each) for each in (uri, *resources_above(uri))] if self._agents else []
        for name, agent in self._agents.items():
            told_of = set[str | None]().union(*(agent.servers.get(digest, ()) for digest in digests))
            if told_of and (server is None or server in told_of or None in told_of):
                yield name


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
