"""Follows the office: turns notifications and lists of the room into events, keeps the caches true, and renews the
subscriptions after each interruption."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import uuid4

from smcp_agent import events
from smcp_agent.cache import AnswerCache, Spawn, ToolCache
from smcp_agent.connecting.connection import Connection, ConnectionBroken
from smcp_agent.connecting.link import FIRST_DELAY_S, MAX_DELAY_S
from smcp_agent.errors import BadReply, ConnectionLost, NoAnswer, NotInOffice, SmcpError, flat_error, retry_after
from smcp_agent.rpc import reply_of
from smcp_proto.backoff import Backoff
from smcp_proto.catalog import GRACE_S, ROOM_S
from smcp_proto.printable import without_login
from smcp_proto.schemas import EnterOfficeReq, ListRoomReq, ListRoomRet
from smcp_proto.schemas.resources import MISSED
from smcp_proto.uris import without_query

FIRST_LIST_S: Final = 1.5 * ROOM_S
"""A list that the first gateway does not answer is asked for again."""

Change = events.ComputerEntered | events.ComputerLeft

logger = logging.getLogger(__name__)


class Room:
    """The Computers of the office. Notifications between a join and the list after it are replayed on top of the list:
    they may be newer. One that is older is corrected by the one that follows it, because they come in order.
    """

    def __init__(self) -> None:
        self._computers: set[str] = set()
        self._held: list[Change] | None = []

    @property
    def computers(self) -> list[str]:
        return sorted(self._computers)

    def hold(self) -> None:
        self._held = []

    def notified(self, change: Change) -> bool:
        """Whether it changes what is known now."""
        if self._held is not None:
            self._held.append(change)
            return False
        return self._apply(change)

    def listed(self, computers: Iterable[str]) -> list[Change]:
        """What is different from what was known before, leaves first."""
        held, self._held = self._held or [], None
        before, self._computers = self._computers, set(computers)
        for change in held:
            self._apply(change)
        return [
            *(events.ComputerLeft(name) for name in sorted(before - self._computers)),
            *(events.ComputerEntered(name) for name in sorted(self._computers - before)),
        ]

    def _apply(self, change: Change) -> bool:
        before = len(self._computers)
        (self._computers.add if isinstance(change, events.ComputerEntered) else self._computers.discard)(
            change.computer
        )
        return len(self._computers) != before


@dataclass(frozen=True, slots=True)
class Subscription:
    """A resource whose changes are published; `server` as it was subscribed to."""

    computer: str
    uri: str
    server: str | None = None

    @property
    def resource(self) -> tuple[str, str]:
        return self.computer, without_query(self.uri)


Ask = Callable[[Literal["subscribe", "unsubscribe"], Subscription], Awaitable[None]]


class Subscriptions:
    """Renews subscriptions, and publishes each renewed one as `ResourceUpdated`: a change may have been missed."""

    def __init__(self, ask: Ask, spawn: Spawn, publish: Callable[[events.Event], object]) -> None:
        self._ask = ask
        self._spawn = spawn
        self._publish = publish
        self._wanted: dict[Subscription, int] = {}
        """Requests for each that were granted, or wait for an answer."""
        self._renewals: dict[str, asyncio.Task[None]] = {}

    def all(self) -> tuple[Subscription, ...]:
        return tuple(self._wanted)

    async def add(self, subscription: Subscription) -> None:
        """Subscribe. If cancelled, unsubscribe in the background, as the Computer may have granted the request. Raises
        SmcpError: an earlier subscription stays."""
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
        """The Computer may end others to the same resource with it, so they are renewed. Raises SmcpError."""
        self._wanted.pop(subscription, None)
        await self._ask("unsubscribe", subscription)
        if others := [each for each in self._wanted if each.resource == subscription.resource]:
            self._spawn(self._renew(others))

    def lost(self, computer: str) -> None:
        self.left(computer)
        if wanted := [each for each in self._wanted if each.computer == computer]:
            self._renewals[computer] = self._spawn(self._renew(wanted))

    def left(self, computer: str) -> None:
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
                    self._publish(events.ResourceUpdated(each.computer, each.uri, each.server))
                else:  # the application unsubscribed meanwhile
                    await self._withdraw(each)
            ended = failed
            if ended:
                await asyncio.sleep(max(least, backoff.next()))

    async def _withdraw(self, subscription: Subscription) -> None:
        with suppress(SmcpError):
            await self._ask("unsubscribe", subscription)


@dataclass(eq=False, repr=False)
class Office:
    """The room and what is known of the Computers in it. It is the link's `Listener`."""

    seat: EnterOfficeReq
    tools: ToolCache
    answers: AnswerCache
    subscriptions: Subscriptions
    publish: Callable[[events.Event], bool]
    room: Room = field(default_factory=Room, init=False)
    _not_listed: SmcpError | None = field(default=None, init=False)
    """Why the room could not be listed last."""

    def joining(self) -> None:
        self.room.hold()

    async def enter(self, connection: Connection) -> None:
        """Fetch the members after the first join. Raises SmcpError: that failed for 15 s."""
        try:
            async with asyncio.timeout(FIRST_LIST_S):
                await self._learn(connection)
        except TimeoutError:
            raise self._not_listed or NoAnswer("the server did not say who is in the office") from None
        except ConnectionBroken as broken:
            raise ConnectionLost(broken.reason, may_have_run=False) from broken

    async def joined(self, connection: Connection) -> None:
        """Fetch the members after a later join, however long it takes. Raises ConnectionBroken."""
        await self._learn(connection)
        self.publish(events.Reconnected(without_login(connection.url)))

    def on_lost(self, reason: str) -> None:
        self.answers.invalidate(None)
        self.publish(events.Disconnected(reason))

    def on_refused(self, why: str) -> None:
        self.publish(events.RejoinRefused(why))

    def on_notice(self, name: str, data: Mapping[str, Any]) -> None:
        computer = data.get("computer")
        match name, computer:
            case "notify:enter_office", str():
                is_heard = self.room.notified(events.ComputerEntered(computer)) and self.publish(
                    events.ComputerEntered(computer)
                )
                if computer in self.room.computers:  # also one that came back before its leave was announced
                    self._computer_entered(computer, is_heard=is_heard)
            case "notify:leave_office", str():
                if self.room.notified(events.ComputerLeft(computer)):
                    self._computer_left(computer)
                    self.publish(events.ComputerLeft(computer))
            case "notify:update_tool_list", str():
                self._refresh(computer)
            case "notify:update_config", str():
                self.publish(events.ConfigChanged(computer))
                self._refresh(computer)
            case _:
                self._take(events.event_of(name, data), missed=data.get(MISSED) is True)

    def _take(self, event: events.Event, *, missed: bool) -> None:
        match event:
            case events.DesktopChanged(computer):
                self.answers.invalidate(computer, "desktop", again=True)
            case events.FinderChanged(computer):
                self.answers.invalidate(computer, "finder", again=True)
            case events.ResourcesChanged(computer) | events.ResourceUpdated(computer):
                self.answers.invalidate(computer, "resources")
        self.publish(event)
        if missed and isinstance(event, events.ResourcesChanged) and event.computer in self.room.computers:
            self.subscriptions.lost(event.computer)

    def _refresh(self, computer: str) -> None:
        if computer in self.room.computers:
            self.tools.refresh(computer)

    def _computer_entered(self, computer: str, *, is_heard: bool) -> None:
        """`is_heard`: somebody heard of it, and expects the event with its tools."""
        self.answers.invalidate(computer)
        self.tools.refresh(computer, restart=True, is_news=is_heard)
        self.subscriptions.lost(computer)

    def _computer_left(self, computer: str) -> None:
        self.tools.drop(computer)
        self.answers.invalidate(computer)
        self.subscriptions.left(computer)

    async def _learn(self, connection: Connection) -> None:
        backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        while (listed := await self._listed(connection)) is None:  # noqa: ASYNC110 -- a query each time
            await asyncio.sleep(backoff.next())
        changes = self.room.listed(each.name for each in listed.sessions if each.role == "computer" and each.name)
        for change in changes:
            is_heard = self.publish(change)
            if isinstance(change, events.ComputerEntered):
                self._computer_entered(change.computer, is_heard=is_heard)
            else:
                self._computer_left(change.computer)
        for computer in self.room.computers:
            if events.ComputerEntered(computer) not in changes:
                self.tools.refresh(computer)
                self.subscriptions.lost(computer)

    async def _listed(self, connection: Connection) -> ListRoomRet | None:
        seat = self.seat
        request = ListRoomReq(agent=seat.name, req_id=uuid4().hex, office_id=seat.office_id)
        reply = await connection.request(
            "server:list_room", request.model_dump(exclude_unset=True), timeout=ROOM_S + GRACE_S
        )
        error = flat_error(reply, ("sessions",))
        if isinstance(error, NotInOffice):
            raise ConnectionBroken(error.message, sent=True)
        if error is None:
            try:
                return reply_of(ListRoomRet, reply, "the answer of the gateway to server:list_room")
            except BadReply as bad:
                error = bad
        logger.info("the members of the office are not known yet: %s", error.message)
        self._not_listed = error
        return None
