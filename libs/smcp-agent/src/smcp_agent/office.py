"""Follows the office: turns notifications and lists of the room into events, and keeps the caches true."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

from smcp_agent.cache import AnswerCache, Partial, Spawn, ToolCache
from smcp_agent.connecting.connection import AckTimedOut, Connection, ConnectionBroken
from smcp_agent.connecting.link import pause
from smcp_agent.context.desktop import Desktop
from smcp_agent.context.finder import Finder, FinderQuery
from smcp_agent.context.resources import ListQuery, Resource
from smcp_agent.context.subscriptions import Subscriptions
from smcp_agent.errors import BadReply, ConnectionLost, NoAnswer, NotInOffice, SmcpError, received_error
from smcp_agent.events import (
    CapabilitiesChanged,
    ComputerEntered,
    ComputerLeft,
    ComputerNotice,
    ConfigChanged,
    DesktopChanged,
    Disconnected,
    Event,
    FinderChanged,
    Notified,
    Reconnected,
    RejoinRefused,
    ResourcesChanged,
    notice_of,
)
from smcp_agent.rpc import reply_of
from smcp_proto.schemas import EnterOfficeReq, ListRoomReq, ListRoomRet
from smcp_proto.schemas.resources import MISSED

ROOM_S: Final = 10.0
"""The server side has so long for a question about the room."""
FIRST_LIST_S: Final = 15.0

Change = ComputerEntered | ComputerLeft

logger = logging.getLogger(__name__)


class Room:
    """The Computers of the office.

    Between a join and the list that is asked for after it, notifications are held back and replayed on top of the
    list: applied at once, an enter that is newer than the list would be wiped out by it. A replayed notification
    that is older than the list is corrected by the one that follows it, because notifications come in order.
    """

    def __init__(self) -> None:
        self._computers: set[str] = set()
        self._held: list[Change] | None = []

    @property
    def computers(self) -> list[str]:
        """Their names, sorted."""
        return sorted(self._computers)

    def __contains__(self, computer: str) -> bool:
        return computer in self._computers

    def hold(self) -> None:
        """A (re-)join begins: keep notifications until the next `listed`."""
        self._held = []

    def notified(self, change: Change) -> bool:
        """Take a notification. Whether it changes what is known now."""
        if self._held is not None:
            self._held.append(change)
            return False
        return self._apply(change)

    def listed(self, computers: Iterable[str]) -> list[Change]:
        """Take the list of the room; returns what is different from what was known before, leaves first."""
        held, self._held = self._held or [], None
        before, self._computers = self._computers, set(computers)
        for change in held:
            self._apply(change)
        return [
            *(ComputerLeft(name) for name in sorted(before - self._computers)),
            *(ComputerEntered(name) for name in sorted(self._computers - before)),
        ]

    def _apply(self, change: Change) -> bool:
        before = len(self._computers)
        (self._computers.add if isinstance(change, ComputerEntered) else self._computers.discard)(change.computer)
        return len(self._computers) != before


class Context:
    """One cache for each kind of answer, and the subscriptions.

    Desktops and parts of the finder are asked for again by themselves when they get old, where somebody read them since
    (desktop.txt and finder.txt recommend that of Agents); lists of resources when somebody asks for them.
    """

    def __init__(
        self,
        *,
        desktop: Callable[[str], Awaitable[Desktop]],
        finder: Callable[[FinderQuery], Awaitable[Finder]],
        resources: Callable[[ListQuery], Awaitable[tuple[Resource, ...] | Partial[tuple[Resource, ...]]]],
        subscriptions: Subscriptions,
        spawn: Spawn,
    ) -> None:
        # nothing announces that what was missing is there: such an answer is not kept
        async def whole_desktop(computer: str) -> Desktop | Partial[Desktop]:
            found = await desktop(computer)
            return Partial(found) if found.get("a2c_missing") else found

        async def whole_finder(query: FinderQuery) -> Finder | Partial[Finder]:
            found = await finder(query)
            return Partial(found) if found.get("a2c_as_listed") else found

        self.desktops: AnswerCache[str, Desktop] = AnswerCache(whole_desktop, spawn, again=True)
        self.finders: AnswerCache[FinderQuery, Finder] = AnswerCache(whole_finder, spawn, again=True)
        self.resources: AnswerCache[ListQuery, tuple[Resource, ...]] = AnswerCache(resources, spawn)
        self.subscriptions = subscriptions

    def forget(self, computer: str) -> None:
        """The Computer left, or came."""
        self.desktops.forget(lambda key: key == computer)
        self.finders.forget(lambda key: key.computer == computer)
        self.resources.forget(lambda key: key.computer in (computer, None))

    def called(self, computer: str) -> None:
        """A tool was called: the order of the Computer's MCP servers is another (desktop.txt, finder.txt, step 2)."""
        self.desktops.outdate(lambda key, _: key == computer, again=False)
        self.finders.outdate(lambda key, _: key.computer == computer, again=False)

    def unheard(self) -> None:
        """Nothing is heard of the office any more: everything may be old."""
        self.desktops.outdate(again=False)
        self.finders.outdate(again=False)
        self.resources.outdate()

    def take(self, event: ComputerNotice) -> None:
        """A Computer says that something is old."""
        computer = event.computer
        match event:
            case DesktopChanged():
                self.desktops.outdate(lambda key, _: key == computer)
            case FinderChanged():
                self.finders.outdate(lambda key, _: key.computer == computer)
            case CapabilitiesChanged():
                self.subscriptions.changed(computer)
            case ResourcesChanged(server=server):
                self.resources.outdate(lambda key, _: _concerns(key, computer, server))
                self.subscriptions.changed(computer)
            case _:
                uri, server = event.uri, event.server
                self.resources.outdate(
                    lambda key, listed: (
                        _concerns(key, computer, server)
                        and (listed is None or any(each["uri"] == uri for each in listed))
                    )
                )


def _concerns(query: ListQuery, computer: str, server: str | None) -> bool:
    """Whether what was listed may hold resources of this server; None: of any."""
    return query.computer in (computer, None) and (server is None or query.server in (server, None))


class Office:
    """The room and what is known of the Computers in it, kept right over reconnects. It is the link's `Listener`."""

    def __init__(
        self, place: EnterOfficeReq, tools: ToolCache, context: Context, publish: Callable[[Event], None]
    ) -> None:
        self._place = place
        self._tools = tools
        self._context = context
        self._publish = publish
        self._room = Room()
        self._not_listed: SmcpError | None = None
        """Why the room could not be listed last."""

    @property
    def computers(self) -> list[str]:
        """Names of the Computers that are in the office, as far as it is known."""
        return self._room.computers

    def joining(self) -> None:
        """Notifications are kept from here on, until the list of the room is there."""
        self._room.hold()

    async def enter(self, connection: Connection) -> None:
        """Learn who is there, after the first join. Raises SmcpError: that was not to be learned within 15 s."""
        try:
            async with asyncio.timeout(FIRST_LIST_S):
                await self._learn(connection)
        except (TimeoutError, AckTimedOut):
            raise self._not_listed or NoAnswer("the server did not say who is in the office") from None
        except ConnectionBroken as broken:
            raise ConnectionLost(broken.reason, may_have_run=False) from broken

    async def joined(self, connection: Connection) -> None:
        """Learn who is there after a join that was not the first, asking until it is known; then say `Reconnected`.

        Raises ConnectionBroken: the connection is gone, or the server does not count the Agent as a member.
        """
        await self._learn(connection)
        self._publish(Reconnected(connection.url))

    def on_lost(self, reason: str) -> None:
        """The connection is gone: what Computers tell is not heard until the next one."""
        self._context.unheard()
        self._publish(Disconnected(reason))

    def on_refused(self, why: str) -> None:
        """Say `RejoinRefused` to the application."""
        self._publish(RejoinRefused(why))

    def on_notice(self, event: str, data: Mapping[str, Any]) -> None:
        """Take a notification of the server."""
        computer = data.get("computer")
        match event, computer:
            case "notify:enter_office", str():
                new = self._room.notified(ComputerEntered(computer))
                if computer in self._room:  # also one that came back before its leave was told
                    self._came(computer)
                if new:
                    self._publish(ComputerEntered(computer))
            case "notify:leave_office", str():
                if self._room.notified(ComputerLeft(computer)):
                    self._went(computer)
                    self._publish(ComputerLeft(computer))
            case "notify:update_tool_list", str():
                self._refresh(computer)
            case "notify:update_config", str():
                self._publish(ConfigChanged(computer))
                self._refresh(computer)
            case _:
                change = notice_of(event, data)
                if change is not None:
                    self._context.take(change)
                self._publish(change or Notified(event, data))
                if isinstance(change, ResourcesChanged) and change.computer in self._room and data.get(MISSED) is True:
                    self._context.subscriptions.lost(change.computer)

    def _refresh(self, computer: str) -> None:
        if computer in self._room:
            self._tools.refresh(computer)
            self._context.subscriptions.changed(computer)

    def _came(self, computer: str) -> None:
        self._tools.refresh(computer)
        self._context.forget(computer)
        self._context.subscriptions.lost(computer)

    def _went(self, computer: str) -> None:
        self._tools.drop(computer)
        self._context.forget(computer)
        self._context.subscriptions.left(computer)

    async def _learn(self, connection: Connection) -> None:
        """Ask who is there until it is known, and take it. The subscriptions may have ended with the connection."""
        attempt = 0
        while (listed := await self._listed(connection)) is None:
            await asyncio.sleep(pause(attempt))
            attempt += 1
        changes = self._room.listed(each.name for each in listed.sessions if each.role == "computer" and each.name)
        for change in changes:
            (self._came if isinstance(change, ComputerEntered) else self._went)(change.computer)
            self._publish(change)
        for computer in self._room.computers:
            if ComputerEntered(computer) not in changes:
                self._tools.refresh(computer)
                self._context.subscriptions.lost(computer)

    async def _listed(self, connection: Connection) -> ListRoomRet | None:
        place = self._place
        request = ListRoomReq(agent=place.name, req_id=uuid4().hex, office_id=place.office_id)
        reply = await connection.request("server:list_room", request.model_dump(exclude_unset=True), timeout=ROOM_S + 2)
        error = received_error(reply, expected=("sessions",))
        if isinstance(error, NotInOffice):
            raise ConnectionBroken(error.message, sent=True)
        if error is None:
            try:
                return reply_of(ListRoomRet, reply, "the answer of the gateway to server:list_room")
            except BadReply as bad:
                error = bad
        logger.info("who is in the office is not known yet: %s", error.message)
        self._not_listed = error
        return None
