"""The subscriptions of an Agent, renewed after each interruption."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from smcp_agent.cache import PASSING, Spawn
from smcp_agent.errors import Closed, NotFound, RateLimited, SmcpError
from smcp_agent.events import Event, ResourceUpdated, SubscriptionRefused
from smcp_proto.backoff import Backoff
from smcp_proto.uris import without_query

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A resource whose changes are published; `server` as it was subscribed to."""

    computer: str
    uri: str
    server: str | None = None

    @property
    def resource(self) -> tuple[str, str]:
        """The key of the resource at its Computer: the URI without its query, for any server."""
        return self.computer, without_query(self.uri)


Ask = Callable[[Literal["subscribe", "unsubscribe"], Subscription], Awaitable[None]]


class _State:
    def __init__(self) -> None:
        self.wanted = 0
        """How many have subscribed, or are about to: it is forgotten when all of them have failed."""
        self.active = False
        """Whether the Computer knows of it, as far as we know."""
        self.refused = False
        """It is asked for again only when the Computer says that something changed; reset by whatever may change it."""
        self.lock = asyncio.Lock()
        """One request at a time: two would reach the Computer in any order."""


class Subscriptions:
    """The subscriptions of an Agent. An interruption ends them at their Computer; they are renewed at once, and after
    growing pauses where that fails for a passing reason. A refused one is published as `SubscriptionRefused`, and asked
    for again after a change at the Computer (its MCP servers may still be starting). Each renewed one is published as
    `ResourceUpdated`, because a change may have been missed.
    """

    def __init__(self, ask: Ask, spawn: Spawn, publish: Callable[[Event], None]) -> None:
        self._ask = ask
        self._spawn = spawn
        self._publish = publish
        self._states: dict[Subscription, _State] = {}
        self._there: set[str] = set()
        """Computers in the office."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def all(self) -> tuple[Subscription, ...]:
        """Every subscription, also those that are being made again."""
        return tuple(self._states)

    async def add(self, subscription: Subscription) -> None:
        """Subscribe. If cancelled, unsubscribe in the background, as the Computer may have granted the request.

        Raises SmcpError: the request was refused. An earlier subscription to the same resource stays.
        """
        state = self._states.setdefault(subscription, _State())
        state.wanted += 1
        try:
            async with state.lock:
                await self._subscribe(subscription, state)
        except BaseException as error:
            state.wanted -= 1
            if not state.wanted and self._states.get(subscription) is state:
                del self._states[subscription]
                if isinstance(error, asyncio.CancelledError):
                    with suppress(Closed):
                        self._spawn(self._withdraw(subscription))
            raise
        finally:
            self._restore(subscription.computer)

    async def remove(self, subscription: Subscription) -> None:
        """End a subscription; it is forgotten whatever comes of the request. One to the same resource with another
        `server` or query may end with it at the Computer, and is renewed.

        Raises SmcpError: the Computer did not confirm it.
        """
        state = self._states.pop(subscription, None) or _State()
        try:
            async with state.lock:
                await self._ask("unsubscribe", subscription)
        finally:
            for other, its in self._states.items():
                if other.resource == subscription.resource:
                    its.active = its.refused = False
            self._restore(subscription.computer)

    async def _withdraw(self, subscription: Subscription) -> None:
        if subscription not in self._states:  # else somebody has subscribed again
            with suppress(SmcpError):
                await self.remove(subscription)

    def lost(self, computer: str) -> None:
        """The Computer is there, and its subscriptions have ended."""
        self._there.add(computer)
        for state in self._of(computer):
            state.active = False
        self.changed(computer)

    def changed(self, computer: str) -> None:
        """Something changed at the Computer: what it refused, it may grant now."""
        for state in self._of(computer):
            state.refused = False
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
        backoff = Backoff()
        while waiting := self._waiting(computer):
            errors: list[SmcpError] = []
            for subscription, state in waiting:
                error = await self._again(subscription, state)
                if error is not None:
                    errors.append(error)
                if isinstance(error, RateLimited):
                    break  # the others would get the same answer
            if errors:
                await asyncio.sleep(max(backoff.next(), *map(_asked_pause, errors)))

    async def _again(self, subscription: Subscription, state: _State) -> SmcpError | None:
        """Subscribe again; returns the error after which that is to be tried once more."""
        async with state.lock:
            if state.active or self._states.get(subscription) is not state:
                return None
            state.refused = True  # unless something changes meanwhile
            try:
                await self._subscribe(subscription, state)
            except SmcpError as error:
                logger.info("%s is not subscribed to again: %s", subscription, error.message)
                # a Computer that is not found is about to be announced as gone
                if isinstance(error, PASSING) or (isinstance(error, NotFound) and error.smcp_code is None):
                    state.refused = False
                    return error
                if state.refused:
                    self._publish(
                        SubscriptionRefused(subscription.computer, subscription.uri, subscription.server, error)
                    )
                return None
        if self._states.get(subscription) is state:
            self._publish(ResourceUpdated(subscription.computer, subscription.uri, subscription.server))
        return None

    async def _subscribe(self, subscription: Subscription, state: _State) -> None:
        state.active = True  # an interruption meanwhile sets it back
        try:
            await self._ask("subscribe", subscription)
        except BaseException:
            state.active = False
            raise
        state.refused = False


def _asked_pause(error: SmcpError) -> float:
    """The pause (seconds) that the other side asked for."""
    pause = error.details.get("retry_after_s")
    return float(min(pause, 3600)) if isinstance(pause, int | float) and pause > 0 else 0.0
