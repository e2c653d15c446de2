"""A member of an office through a bare python-socketio client: what anybody can write without our SDK."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal
from uuid import uuid4

import aiohttp
import socketio
from socketio.exceptions import DisconnectedError

from smcp_testing.waiting import eventually

NAMESPACE = "/smcp"
_BIG = 64 * 1024 * 1024
_CONNECT_S = 15
"""The second of python-socketio's default says more of the machine than of the gateway."""
_CLOSE_S = 1


class FlatError(Exception):
    """What the server answered instead of a reply: `{"code", "message", "details"}`."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(f"{body['code']} {body['message']} {body.get('details') or ''}")
        self.code = int(body["code"])
        self.details: Mapping[str, Any] = body.get("details") or {}


class Refused(Exception):
    """The office did not take the member in; the text is the ack's "why"."""


Notice = tuple[str, Mapping[str, Any]]


def comings_and_goings(notices: Iterable[Notice], name: str) -> list[str]:
    """`enter` and `leave` of the member `name`, in the order of the notices."""
    return [
        event.removeprefix("notify:").removesuffix("_office")
        for event, data in notices
        if event in ("notify:enter_office", "notify:leave_office") and name in (data.get("computer"), data.get("agent"))
    ]


class BareMember:
    """A socket and its notifications, in order. It does not come back by itself when it is cut off: then what it waits
    for fails at once.
    """

    def __init__(self, role: Literal["agent", "computer"], office: str, name: str) -> None:
        self.role = role
        self.office = office
        self.name = name
        self.notices: list[Notice] = []
        self.told_at: list[float] = []
        """When it received each of the notices (monotonic seconds)."""
        self._told = asyncio.Condition()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._closing = False
        self._cut_off = False
        self._sio = self._new_client()

    def _new_client(self) -> Any:
        client = socketio.AsyncClient(
            reconnection=False, handle_sigint=False, websocket_extra_options={"max_msg_size": _BIG}
        )
        client.on("*", self._on_event, namespace=NAMESPACE)
        client.on("disconnect", self._on_disconnect, namespace=NAMESPACE)
        return client

    @property
    def connected(self) -> bool:
        return bool(self._sio.connected)

    @property
    def sid(self) -> str:
        """Of its connection: another one after it was cut off."""
        return str(self._sio.get_sid(NAMESPACE))

    async def connect(self, url: str) -> None:
        self._closing = self._cut_off = False
        await self._sio.connect(
            url,
            namespaces=[NAMESPACE],
            transports=["websocket"],
            auth={"max_message": _BIG, "flat_errors": True},
            wait_timeout=_CONNECT_S,
        )

    async def join(self) -> None:
        """Raises Refused."""
        request = {"role": self.role, "name": self.name, "office_id": self.office}
        joined, why, *_ = await self.ask("server:join_office", request)
        if joined is not True:
            raise Refused(why)

    async def leave(self) -> None:
        left, why, *_ = await self.ask("server:leave_office", {"office_id": self.office})
        if left is not True:
            raise Refused(why)

    async def close(self) -> None:
        self._closing = True
        await self._sio.disconnect()
        await self._sio.shutdown()
        left: aiohttp.ClientWebSocketResponse | None = self._sio.eio.ws
        if left is not None and not left.closed:  # python-engineio leaves it as it is where it fell silent
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await left.close()

    async def ack(self, event: str, *arguments: Any, timeout: float = 30) -> Any:
        """The ack of an event with whatever arguments, as it came.

        Raises:
            SocketIOError: it is not connected, or was cut off before the ack (python-socketio's `call` waits on then).
            TimeoutError: no ack came.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(*values: Any) -> None:
            if not answer.done():
                answer.set_result(values[0] if len(values) == 1 else values or None)

        self._unanswered.add(answer)
        try:
            await self._sio.emit(event, arguments, namespace=NAMESPACE, callback=answered)
            return await asyncio.wait_for(answer, timeout)
        finally:
            self._unanswered.discard(answer)

    async def ask(self, event: str, data: Mapping[str, Any], timeout: float = 30) -> Any:
        """The ack of an event. Raises FlatError."""
        answer = await self.ack(event, dict(data), timeout=timeout)
        if isinstance(answer, dict) and isinstance(answer.get("code"), int) and "message" in answer:
            raise FlatError(answer)
        return answer

    # -- as an Agent

    async def call(
        self,
        computer: str,
        tool: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: int = 30,
        req_id: str | None = None,
        traceparent: str | None = None,
    ) -> dict[str, Any]:
        """The CallToolResult of a tool call. Raises FlatError."""
        request = {
            "agent": self.name,
            "req_id": req_id or uuid4().hex,
            "computer": computer,
            "tool_name": tool,
            "params": dict(params or {}),
            "timeout": timeout,
        }
        if traceparent is not None:
            request["traceparent"] = traceparent
        answer = await self.ask("client:tool_call", request, timeout=timeout + 5)
        assert isinstance(answer, dict), answer
        refused = (answer.get("meta") or {}).get("a2c_error")
        if refused is not None:  # the form for a client that reads no flat errors
            raise FlatError({**refused, "message": answer["content"][0]["text"]})
        return answer

    async def tools(self, computer: str) -> set[str]:
        """The names of a Computer's tools. Raises FlatError."""
        request = {"agent": self.name, "req_id": uuid4().hex, "computer": computer}
        return {tool["name"] for tool in (await self.ask("client:get_tools", request))["tools"]}

    async def room(self) -> set[tuple[str, str]]:
        """(role, name) of everyone in the office. Raises FlatError."""
        request = {"agent": self.name, "req_id": uuid4().hex, "office_id": self.office}
        sessions = (await self.ask("server:list_room", request))["sessions"]
        return {(session["role"], session["name"]) for session in sessions}

    # -- as an observer

    async def told(self, event: str, timeout: float = 30, **fields: str) -> None:
        """Wait until it has received `event` with these fields.

        Raises:
            AssertionError: it was not, in time, or before it was cut off; lists the notices that it received.
        """

        def told() -> bool:
            if self.count(event, **fields) > 0:
                return True
            assert not self._cut_off, f"{self.name} was cut off before {event} {fields}: {self.notices}"
            return False

        try:
            async with asyncio.timeout(timeout), self._told:
                await self._told.wait_for(told)
        except TimeoutError:
            raise AssertionError(f"{self.name} was not told {event} {fields}, but {self.notices}") from None

    def count(self, event: str, **fields: str) -> int:
        """How often it received `event` with these fields."""
        return sum(1 for told, data in self.notices if told == event and fields.items() <= data.items())

    def comings_and_goings(self, name: str) -> list[str]:
        """`enter` and `leave` of the member `name`, in the order in which they came."""
        return comings_and_goings(self.notices, name)

    async def _on_event(self, event: str, data: Any = None) -> None:
        async with self._told:
            self.notices.append((event, data if isinstance(data, dict) else {}))
            self.told_at.append(time.monotonic())
            self._told.notify_all()

    async def _on_disconnect(self, *_: Any) -> None:
        self._cut_off = not self._closing
        for answer in self._unanswered:
            if not answer.done():
                answer.set_exception(DisconnectedError(f"{self.name} was cut off"))
        async with self._told:
            self._told.notify_all()


@asynccontextmanager
async def member(url: str, role: Literal["agent", "computer"], office: str, name: str) -> AsyncIterator[BareMember]:
    """A member for as long as the block runs; afterwards its socket is closed.

    It waits while the seat is taken: the member of the test before may still be leaving, and on a busy machine its
    gateway may be too slow to say that it left.

    Raises:
        Refused: for another reason.
    """
    found = BareMember(role, office, name)
    await found.connect(url)

    async def joined() -> bool:
        try:
            await found.join()
        except Refused as refused:
            if "already" not in str(refused):
                raise
            return False
        return True

    try:
        await eventually(joined, message=f"the seat of {role} {name} in {office} stays taken")
        yield found
    finally:
        await found.close()
