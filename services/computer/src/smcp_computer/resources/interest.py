"""What is wanted to be known of the resources of one MCP server, and what it has answered."""

import asyncio
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from smcp_computer.mcp.errors import ServerError
from smcp_computer.mcp.resources import Resources
from smcp_computer.mcp.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a server does not tell of a resource."""

    error: ServerError
    asked: float
    """When it was asked (loop time)."""


@dataclass
class Interest:
    """In the resources of one server. A URI is in one of `subscribed`, `failed`, `asking` and `ending` at most."""

    supervisor: Supervisor
    holders: dict[str, set[Hashable]] = field(default_factory=dict)
    """By URI."""
    new: set[tuple[str, Hashable]] = field(default_factory=set)
    """URIs and holders who wait for the answer to their `hold`: what they have not read yet they do not miss."""
    waiting: Counter[tuple[str, Hashable]] = field(default_factory=Counter)
    """How many calls of `hold` wait, by URI and holder: one that is given up must not end what another asks for."""
    life: Resources | None = None
    """The connection at which the following is so."""
    subscribed: set[str] = field(default_factory=set)
    failed: dict[str, Failure] = field(default_factory=dict)
    """Asked for again after a pause, or by the next `hold`."""
    asking: set[str] = field(default_factory=set)
    ending: set[str] = field(default_factory=set)
    """The server is being told that it need not tell of them."""
    untold: dict[str, frozenset[Hashable]] = field(default_factory=dict)
    """Subscriptions that were made and are still to be told, as `ResourcesSubscribed` has them."""
    telling: asyncio.TimerHandle | None = None
    answers: dict[str, asyncio.Event] = field(default_factory=dict)
    """Of those that are waited for in `asking` and `ending`: set once they are not there any more."""
    dirty: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: asyncio.TaskGroup | None = None
    """Where the server is asked: no caller's time-out breaks that off."""

    def connection(self) -> Resources | None:
        """That of the server's present life; what was so in an earlier one is forgotten."""
        resources = self.supervisor.resources
        if resources is not self.life:
            self.life = resources
            for uris in (self.subscribed, self.asking, self.ending):
                uris.clear()
            self.failed.clear()
            self.untold.clear()
            self.settled(tuple(self.answers))
        return resources

    def missing(self) -> list[str]:
        """What is held, and was not asked for in this life."""
        known = self.subscribed | self.failed.keys() | self.asking | self.ending
        return [uri for uri in self.holders if uri not in known]

    def settled(self, uris: Collection[str]) -> None:
        """These are in `asking` and `ending` no more: who waits for that goes on."""
        for uri in uris:
            self.asking.discard(uri)
            self.ending.discard(uri)
            if (answer := self.answers.pop(uri, None)) is not None:
                answer.set()
