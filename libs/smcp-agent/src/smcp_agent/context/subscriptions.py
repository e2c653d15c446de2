"""The subscriptions of an Agent, renewed after each interruption."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from smcp_agent.cache import Spawn
from smcp_agent.errors import NotFound, RateLimited, SmcpError, TimedOut, Unavailable
from smcp_agent.events import Event, ResourceUpdated, SubscriptionRefused
from smcp_proto.uris import without_query

_PASSING: Final = (Unavailable, TimedOut, RateLimited)
_FIRST_DELAY_S: Final = 0.5
_MAX_DELAY_S: Final = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A resource whose changes are told; `server` as it was subscribed to."""

    computer: str
    uri: str
    server: str | None = None


Ask = Callable[[Subscription], Awaitable[None]]


class _State:
    """Of one subscription."""

    def __init__(self) -> None:
        self.active = False
        """Whether the Computer knows of it, as far as we know."""
        self.refused = False
        """Not for a passing reason: it is asked for again only when the Computer says that something changed."""
        self.news = 0
        """Counts what was said that changes what an answer means that is still to come."""
        self.lock = asyncio.Lock()
        """One request at a time: two would reach the Computer in any order."""


class Subscriptions:
    """The subscriptions of an Agent.

    They live with their Computers, and end there when the Computer or the Agent leaves the office. Then they are made
    again: at once, and after growing pauses where that fails for a passing reason. What the Computer refuses (its MCP
    servers may still be starting) is told as `SubscriptionRefused`, and asked for again when it says that something
    changed there. A change may have been missed meanwhile, so each one that is made again is told as a
    `ResourceUpdated`.

    Args:
        subscribe, unsubscribe: ask the Computer.
        spawn: runs what makes them again.
        publish: tells the application.
    """

    def __init__(self, subscribe: Ask, unsubscribe: Ask, spawn: Spawn, publish: Callable[[Event], None]) -> None:
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._spawn = spawn
        self._publish = publish
        self._states: dict[Subscription, _State] = {}
        self._there: set[str] = set()
        """Computers in the office."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def all(self) -> tuple[Subscription, ...]:
        """Everything that the Agent is subscribed to, also what is being made again."""
        return tuple(self._states)

    async def add(self, subscription: Subscription) -> None:
        """Subscribe.

        Raises SmcpError: it was refused; where it had been subscribed to before, that is kept up as before.
        """
        known = subscription in self._states
        state = self._states.setdefault(subscription, _State())
        try:
            async with state.lock:
                await self._ask(subscription, state)
        except BaseException:
            if not known and self._states.get(subscription) is state:
                del self._states[subscription]
            raise
        finally:
            self._restore(subscription.computer)

    async def remove(self, subscription: Subscription) -> None:
        """End a subscription; it is forgotten whatever comes of the request.

        What is subscribed to with another `server`, or with another query of a document, may be the same to the
        Computer, and end with it: it is made again.

        Raises:
            SmcpError: the Computer did not confirm it.
        """
        state = self._states.pop(subscription, None) or _State()
        try:
            async with state.lock:
                await self._unsubscribe(subscription)
        finally:
            for other, its in self._states.items():
                if _resource_of(other) == _resource_of(subscription):
                    its.active = its.refused = False
                    its.news += 1
            self._restore(subscription.computer)

    def lost(self, computer: str) -> None:
        """The Computer is there, and does not know any more what was subscribed to."""
        self._there.add(computer)
        for state in self._of(computer):
            state.active = state.refused = False
            state.news += 1
        self._restore(computer)

    def changed(self, computer: str) -> None:
        """Something changed at the Computer: what it refused, it may grant now."""
        for state in self._of(computer):
            state.refused = False
            state.news += 1
        self._restore(computer)

    def left(self, computer: str) -> None:
        """The Computer left: nothing is asked of it until it is back."""
        self._there.discard(computer)
        for state in self._of(computer):
            state.active = False
        task = self._tasks.pop(computer, None)
        if task is not None:
            task.cancel()

    def _of(self, computer: str) -> list[_State]:
        return [state for subscription, state in self._states.items() if subscription.computer == computer]

    def _waiting(self, computer: str) -> list[tuple[Subscription, _State]]:
        return [
            (subscription, state)
            for subscription, state in self._states.items()
            if subscription.computer == computer and not state.active and not state.refused and not state.lock.locked()
        ]

    def _restore(self, computer: str) -> None:
        task = self._tasks.get(computer)
        if computer in self._there and self._waiting(computer) and (task is None or task.done()):
            self._tasks[computer] = self._spawn(self._keep(computer))

    async def _keep(self, computer: str) -> None:
        delay = _FIRST_DELAY_S
        while waiting := self._waiting(computer):
            pause = 0.0
            for subscription, state in waiting:
                error = await self._again(subscription, state)
                if error is not None:
                    pause = max(pause, delay, _asked_pause(error))
                if isinstance(error, RateLimited):
                    break  # of the others the same would be said
            if pause:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 -- jitter
                delay = min(_MAX_DELAY_S, 2 * delay)

    async def _again(self, subscription: Subscription, state: _State) -> SmcpError | None:
        """Make one again; returns why that is to be tried once more."""
        async with state.lock:
            if state.active or self._states.get(subscription) is not state:
                return None
            news = state.news
            try:
                await self._ask(subscription, state)
            except SmcpError as error:
                logger.info("%s is not subscribed to again: %s", subscription, error.message)
                if isinstance(error, _PASSING) or (isinstance(error, NotFound) and error.smcp_code is None):
                    return error  # of a Computer that is not found it is about to be told that it left
                if state.news == news:
                    state.refused = True
                    self._publish(
                        SubscriptionRefused(subscription.computer, subscription.uri, subscription.server, error)
                    )
                return None
        if self._states.get(subscription) is state:
            self._publish(ResourceUpdated(subscription.computer, subscription.uri, subscription.server))
        return None

    async def _ask(self, subscription: Subscription, state: _State) -> None:
        """Subscribe; what is said meanwhile may set `active` back."""
        state.active = True
        try:
            await self._subscribe(subscription)
        except BaseException:
            state.active = False
            raise
        state.refused = False  # what it refused before, it has granted: that is kept up again


def _resource_of(subscription: Subscription) -> tuple[str, str]:
    return subscription.computer, without_query(subscription.uri)


def _asked_pause(error: SmcpError) -> float:
    """The pause (seconds) that the other side asked for."""
    said = error.details.get("retry_after_s")
    return float(said) if isinstance(said, int | float) and said > 0 else 0.0
