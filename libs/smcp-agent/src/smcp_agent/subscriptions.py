"""The subscriptions of an Agent, renewed after each interruption."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from smcp_agent.cache import Spawn
from smcp_agent.errors import SmcpError, retry_after
from smcp_agent.events import Event, ResourceUpdated
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


class Subscriptions:
    """The subscriptions of an Agent. An interruption ends them at their Computer; they are renewed at once, and after
    growing pauses where that fails. Each renewed one is published as `ResourceUpdated`, because a change may have been
    missed.
    """

    def __init__(self, ask: Ask, spawn: Spawn, publish: Callable[[Event], object]) -> None:
        self._ask = ask
        self._spawn = spawn
        self._publish = publish
        self._wanted: dict[Subscription, int] = {}
        """Requests for each that were granted, or wait for an answer."""
        self._renewals: dict[str, asyncio.Task[None]] = {}
        """By Computer."""

    def all(self) -> tuple[Subscription, ...]:
        """Every subscription, also those that are being renewed."""
        return tuple(self._wanted)

    async def add(self, subscription: Subscription) -> None:
        """Subscribe. If cancelled, unsubscribe in the background, as the Computer may have granted the request. Raises
        SmcpError: the request was refused, and an earlier subscription stays."""
        # before the request, so that a lost connection ends it, too
        self._wanted[subscription] = self._wanted.get(subscription, 0) + 1
        try:
            await self._ask("subscribe", subscription)
        except BaseException as error:
            if others := self._wanted.pop(subscription, 1) - 1:
                self._wanted[subscription] = others
            elif isinstance(error, asyncio.CancelledError):
                with suppress(SmcpError):
                    self._spawn(self._withdraw(subscription))
            raise

    async def remove(self, subscription: Subscription) -> None:
        """End a subscription; it is forgotten whatever comes of the request. The Computer may end others to the
        same resource with it, so they are renewed. Raises SmcpError if the Computer did not confirm it."""
        self._wanted.pop(subscription, None)
        await self._ask("unsubscribe", subscription)
        if others := [each for each in self._wanted if each.resource == subscription.resource]:
            self._spawn(self._renew(others))

    def lost(self, computer: str) -> None:
        """The Computer is there, and its subscriptions have ended."""
        self.left(computer)
        if wanted := [each for each in self._wanted if each.computer == computer]:
            self._renewals[computer] = self._spawn(self._renew(wanted))

    def left(self, computer: str) -> None:
        """The Computer left: nothing is asked of it until it is back."""
        if (renewal := self._renewals.pop(computer, None)) is not None:
            renewal.cancel()

    async def _renew(self, ended: list[Subscription]) -> None:
        backoff = Backoff()
        while ended:
            failed, least = [], 0.0
            for each in ended:
                if each not in self._wanted:
                    continue
                try:
                    await self._ask("subscribe", each)
                except SmcpError as error:
                    logger.info("%s is not subscribed to again yet: %s", each, error.message)
                    failed.append(each)
                    least = max(least, retry_after(error))
                    continue
                if each in self._wanted:
                    self._publish(ResourceUpdated(each.computer, each.uri, each.server))
                else:  # the application unsubscribed meanwhile
                    await self._withdraw(each)
            ended = failed
            if ended:
                await asyncio.sleep(max(least, backoff.next()))

    async def _withdraw(self, subscription: Subscription) -> None:
        with suppress(SmcpError):
            await self._ask("unsubscribe", subscription)
