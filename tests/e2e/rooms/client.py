"""A bare client that records when its connection ended."""

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from socketio.exceptions import SocketIOError

from smcp_proto.member_names import Role
from tests.e2e.actors.bare import BareMember, FlatError
from tests.e2e.rooms.presence import MemberKey

CONNECT_S = 20.0
ANSWER_S = 30.0


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    OPEN = "no answer that says whether it was done"


class Wrong(AssertionError):
    """An answer that nobody may get."""


class Client(Protocol):
    """What an actor needs of one of its connections."""

    role: Role
    name: str
    notices: list[tuple[str, Mapping[str, Any]]]
    ended_at: float | None
    """When it was cut off (seconds of the record); None while it is connected, and where it closed by itself."""

    @property
    def sid(self) -> str:
        """By which the registries know its member."""
        ...

    async def opened(self) -> bool:
        """Whether it could connect."""
        ...

    async def joins(self, office: str) -> tuple[Outcome, str]:
        """What became of it, and why."""
        ...

    async def leaves(self, office: str) -> tuple[Outcome, str]: ...

    async def listed(self, office: str) -> dict[MemberKey, str] | None:
        """The opaque ids of all that are in the office, by role and name; None where there is no answer now."""
        ...

    async def close(self) -> None: ...


class RoomClient(BareMember):
    """A `Client` by a gateway.

    Args:
        url: where to connect.
        now: the clock of the record.
    """

    def __init__(self, role: Role, name: str, *, url: str, now: Callable[[], float]) -> None:
        super().__init__(role, "", name)
        self._url = url
        self.ended_at: float | None = None
        self._now = now

    async def opened(self) -> bool:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.connect(self._url)
        except (SocketIOError, TimeoutError):
            await self.close()
            return False
        return True

    async def joins(self, office: str) -> tuple[Outcome, str]:
        request = {"role": self.role, "name": self.name, "office_id": office}
        return _read(await self._answer("server:join_office", request))

    async def leaves(self, office: str) -> tuple[Outcome, str]:
        return _read(await self._answer("server:leave_office", {"office_id": office}))

    async def listed(self, office: str) -> dict[MemberKey, str] | None:
        request = {"agent": self.name, "req_id": "0123456789abcdef", "office_id": office}
        try:
            answer = await self._answer("server:list_room", request)
        except FlatError as error:
            if error.code == 500:
                raise
            return None
        if answer is None:
            return None
        return {(session["role"], session["name"]): session["sid"] for session in answer["sessions"]}

    async def _answer(self, event: str, request: Mapping[str, Any]) -> Any:
        """None where the connection ended first."""
        try:
            return await self.ask(event, request, timeout=ANSWER_S)
        except SocketIOError:
            return None

    async def _on_event(self, event: str, data: Any = None) -> None:
        if not self._closing:  # it hangs up: what comes until that is done is nobody's any more
            await super()._on_event(event, data)

    async def _on_disconnect(self, *_: Any) -> None:
        if not self._closing and self.ended_at is None:
            self.ended_at = self._now()
        await super()._on_disconnect()


def _read(answer: Any) -> tuple[Outcome, str]:
    match answer:
        case None:
            return Outcome.OPEN, "the connection ended"
        case [True, None]:
            return Outcome.DONE, ""
        case [False, str(why), *_] if why.startswith("503 "):
            return Outcome.OPEN, why
        case [False, str(why), *_] if why.startswith(("403 ", "4103 ")):
            return Outcome.REFUSED, why
        case _:
            raise Wrong(f"the answer is {answer!r}")
