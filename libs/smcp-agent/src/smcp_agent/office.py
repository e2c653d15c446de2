"""What goes on in the office: notifications and lists of the room in, events and fetches of tools out."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4

from smcp_agent.connecting.connection import AckTimedOut, Connection, ConnectionBroken
from smcp_agent.connecting.link import pause
from smcp_agent.context.known import Context
from smcp_agent.context.notices import told
from smcp_agent.errors import ConnectionLost, NoAnswer, NotInOffice, SmcpError, received_error
from smcp_agent.events import (
    ComputerEntered,
    ConfigChanged,
    Disconnected,
    Event,
    Notified,
    Reconnected,
    RejoinRefused,
    ResourcesChanged,
)
from smcp_agent.models import reply_of
from smcp_agent.room import Change, Entered, Left, Room
from smcp_agent.tool_cache import ToolCache
from smcp_proto.schemas import EnterOfficeReq, ListRoomReq, ListRoomRet
from smcp_proto.schemas.resources import MISSED

ROOM_S: Final = 10.0
"""The server side has so long for a question about the room."""
FIRST_LIST_S: Final = 15.0

logger = logging.getLogger(__name__)


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
        self._sids: dict[str, str | None] = {}
        """Of the Computers that were in the last list: another one is another membership."""
        self._moving = False
        """Whether the gateway said that the agent's place is kept; the next one says where it is not (`MISSED`)."""

    @property
    def computers(self) -> list[str]:
        """Names of the Computers that are in the office, as far as it is known."""
        return self._room.computers

    def joining(self) -> None:
        """Notifications are kept from here on, until the list of the room is there."""
        self._room.hold()

    async def enter(self, connection: Connection) -> None:
        """Learn who is there, after the first join.

        Raises:
            SmcpError: that was not to be learned within 15 s.
        """
        last: SmcpError = NoAnswer("the server did not say who is in the office")
        try:
            async with asyncio.timeout(FIRST_LIST_S):
                for attempt in range(1000):
                    try:
                        return self._take(await self._list(connection))
                    except SmcpError as error:
                        last = error
                    await asyncio.sleep(pause(attempt))
        except (TimeoutError, AckTimedOut):
            raise last from None
        except ConnectionBroken as broken:
            raise ConnectionLost(broken.reason, may_have_run=False) from broken

    async def joined(self, connection: Connection) -> None:
        """Learn who is there after a join that was not the first, asking until it is known; then say `Reconnected`.

        Raises:
            ConnectionBroken: the connection is gone, or the server does not count the Agent as a member.
        """
        attempt = 0
        while True:
            try:
                listed = await self._list(connection)
            except NotInOffice as error:
                raise ConnectionBroken(error.message, sent=True) from error
            except SmcpError as error:
                logger.info("who is in the office is not known yet: %s", error.message)
                await asyncio.sleep(pause(attempt))
                attempt += 1
                continue
            self._take(listed, moved=self._moving)
            self._publish(Reconnected(connection.url))
            return

    def on_lost(self, reason: str, *, moving: bool) -> None:
        """The connection is gone: what Computers tell is not heard until the next one."""
        self._moving = moving
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
                self._sids.pop(computer, None)
                changes = self._room.notified(Entered(computer))
                self._tell(changes)
                if not changes and computer in self._room:  # it came back before its leave was told
                    self._tools.refresh(computer)
                    self._context.entered(computer)
            case "notify:leave_office", str():
                self._tell(self._room.notified(Left(computer)))
            case "notify:update_tool_list", str():
                self._refresh(computer)
            case "notify:update_config", str():
                self._publish(ConfigChanged(computer))
                self._refresh(computer)
            case _:
                change = told(event, data)
                if change is not None:
                    self._context.take(change)
                self._publish(change or Notified(event, data))
                if isinstance(change, ResourcesChanged) and change.computer in self._room and data.get(MISSED) is True:
                    self._context.disowned(change.computer)

    def _refresh(self, computer: str) -> None:
        if computer in self._room:
            self._tools.refresh(computer)
            self._context.changed(computer)

    def _take(self, listed: ListRoomRet, *, moved: bool = False) -> None:
        before = self._sids
        self._sids = {each.name: each.sid for each in listed.sessions if each.role == "computer" and each.name}
        changes = self._room.listed(self._sids)
        self._tell(changes)
        new = {change.computer for change in changes}
        for computer in self._room.computers:
            self._tools.refresh(computer)
            sid = self._sids.get(computer)
            if computer in new:
                continue
            if moved and sid is not None and before.get(computer) == sid:
                self._context.missed(computer)
            else:
                self._context.disowned(computer)

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ComputerEntered):
                self._tools.refresh(change.computer)
                self._context.entered(change.computer)
            else:
                self._tools.drop(change.computer)
                self._context.left(change.computer)
            self._publish(change)

    async def _list(self, connection: Connection) -> ListRoomRet:
        place = self._place
        request = ListRoomReq(agent=place.name, req_id=uuid4().hex, office_id=place.office_id)
        reply = await connection.request("server:list_room", request.model_dump(exclude_unset=True), timeout=ROOM_S + 2)
        error = received_error(reply, expected=("sessions",))
        if error is not None:
            raise error
        return reply_of(ListRoomRet, reply, "the answer of the gateway to server:list_room")
