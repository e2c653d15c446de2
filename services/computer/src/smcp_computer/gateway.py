"""Connects a Computer to a gateway over Socket.IO, with an address and a token; the handlers are those of NATS."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Unpack

from pydantic import ValidationError

from smcp_agent.connecting.connection import Connection, ConnectionBroken
from smcp_agent.connecting.link import Addresses, Link, delay
from smcp_agent.connecting.options import ROUND_A_BODY, ConnectionOptions, Token
from smcp_agent.errors import flat_error
from smcp_bus import exact_json
from smcp_bus.bus import ConnectionLost, NotConnected, RequestTimedOut
from smcp_bus.callers import CALLER_KEY, from_request
from smcp_bus.dispatch import failed
from smcp_bus.tracing import client_spans
from smcp_computer.computer import Computer, Options, hinted
from smcp_computer.settings import ComputerSettings
from smcp_proto import catalog
from smcp_proto.backoff import Backoff
from smcp_proto.errors import ANSWER_TOO_LARGE, Malformed, NotInOffice, SmcpError, TooLarge, Unavailable
from smcp_proto.printable import without_login
from smcp_proto.schemas import EnterOfficeReq, LeaveOfficeNotification
from smcp_proto.schemas.base import AgentCallData
from smcp_proto.schemas.tools import PROGRESS_BY, TOOL_PROGRESS
from smcp_service.lifecycle import background

_log = logging.getLogger("smcp_computer.gateway")


@asynccontextmanager
async def open_gateway_computer(
    settings: ComputerSettings, *, token: Token | None = None, **options: Unpack[Options]
) -> AsyncIterator[Computer]:
    """Run the MCP servers of this host and answer for them in the settings' office, by the gateways at `gateway_url`.

    It is entered at once; connecting and joining go on in the background. On leaving it starts no new calls, waits for
    those that run (at most `drain_s`), and only then leaves the office (or, with `restart`, has its place kept): a
    gateway fails the calls of one that left.

    Raises ConfigError (the file) and Malformed (`gateway_url` is not a URL).
    """
    membership = GatewayMembership(settings, token)
    async with background() as tasks:
        computer = Computer(
            settings,
            membership.tell,
            tasks,
            max_body=settings.max_payload,
            may_tell=lambda: membership.problem is None,
            tracing=client_spans(),
            **options,
        )
        computer.membership, membership.computer = membership, computer
        computer.readiness.add("office", lambda: membership.problem)
        async with computer.serving(), computer.member(), computer.calls_ended(settings.drain_s):
            try:
                yield computer
            finally:
                computer.readiness.draining = True
                await membership.stopping()


class GatewayMembership:
    """The membership at a gateway; also what tells the office, and the receiver of requests."""

    def __init__(self, settings: ComputerSettings, token: Token | None) -> None:
        self._office, self._restart, self._max_body = settings.office, settings.restart, settings.max_payload
        self._caller_key = secrets.token_urlsafe(16)
        self._me = EnterOfficeReq(role="computer", name=settings.name, office_id=settings.office)
        self.link = Link(
            Addresses(url.strip() for url in (settings.gateway_url or "").split(",")),
            self._me,
            ConnectionOptions(
                max_message=settings.max_payload + ROUND_A_BODY,
                max_request=settings.max_payload,
                auth={CALLER_KEY: self._caller_key},
                token=token,
                answer=self._answer,
            ),
            self,
            self._heard,
        )
        self.has_joined = asyncio.Event()
        """Set once it was a member for the first time."""
        self._problem: str | None = "not joined yet"
        self.computer: Computer
        """Set before `run`."""
        self.serving = True
        """False: no new call is started; those that run are answered."""

    @property
    def problem(self) -> str | None:
        """Why this Computer is not in its office now; None while it is."""
        connection = self.link.connection
        if self._problem is None and (connection is None or connection.lost.is_set()):
            return "the connection with the gateway is lost"
        return self._problem

    async def run(self) -> None:
        """Join, and join again after every loss, until cancelled, also if the token is refused: it may be renewed."""
        backoff = Backoff(first_s=0.25, longest_s=5.0)
        while True:
            try:
                connection = await self.link.open()
            except SmcpError as error:
                self._trouble(error.message)
                await asyncio.sleep(max(backoff.next(), delay(error)))
            else:
                await self.joined(connection)
                return await self.link.run()

    async def stopping(self) -> None:
        """Start no new call. For a restart, have them wait at the gateways for the next process."""
        connection = self.link.connection
        if self._restart and connection is not None:
            with suppress(ConnectionBroken, TimeoutError):  # it is said again at the end
                await self.link.leave(connection, restarts=True)
        self.serving = False

    async def leave(self) -> None:
        """Leave the office; for a restart, the gateway has the seat kept."""
        was_in, self._problem = self.problem is None, "left"
        await self.link.close(restarts=self._restart)
        if was_in:
            what = "kept for the next process" if self._restart else "released"
            _log.info("the seat in the office %r is %s", self._office, what)

    def joining(self) -> None:
        said = {**self._me.model_dump(exclude_unset=True), "capabilities": self.computer.resources.index.capabilities}
        self.link.seat = EnterOfficeReq.model_validate(said)

    async def joined(self, connection: Connection) -> None:
        self._problem = None
        if self._restart and not self.has_joined.is_set():  # it may have the seat of a process that was restarted
            self.computer.resources.changed_all()
        self.has_joined.set()
        self.computer.in_office(new_tenure=True)
        self.computer.outbox.resume()
        _log.info("in the office %r as %r, by %s", self._office, self._me.name, without_login(connection.url))

    def on_lost(self, reason: str) -> None:
        self._problem = f"the connection with the gateway is lost: {reason}"
        _log.info("not in the office %r: %s; retrying", self._office, self._problem)

    def on_refused(self, why: str) -> None:
        self._trouble(f"refused: {why}")

    def _trouble(self, problem: str) -> None:
        problem = hinted(problem)
        if problem != self._problem:
            _log.warning("not in the office %r: %s; retrying", self._office, problem)
        self._problem = problem

    async def tell(self, verb: str, body: bytes) -> None:
        row = catalog.by_verb("server", verb)
        assert row is not None  # a verb of ours
        event, connection = catalog.SAID_AS.get(row.event, row.event), self.link.connection
        if connection is None:
            raise NotConnected("there is no connection with a gateway now")
        try:
            reply = await connection.request(event, exact_json.read(body), timeout=catalog.ROOM_S + catalog.GRACE_S)
        except ConnectionBroken as broken:
            raise (ConnectionLost if broken.sent else NotConnected)(broken.reason) from None
        except TimeoutError:
            raise RequestTimedOut(f"no answer to {event}") from None
        error = flat_error(reply)
        if isinstance(error, NotInOffice):
            self.link.drop(connection)  # joining again repairs it
        if error is not None:
            raise error

    async def _answer(self, event: str, body: object) -> bytes:
        """The JSON of the acknowledgement of a request. The gateway vouches for the sender, an Agent of this office."""
        if not self.serving:
            return _failed(Unavailable("the Computer is stopping", details={"may_have_run": False}))
        row = catalog.lookup(event)
        if row is None:
            return _failed(Malformed("unknown event", details={"field": ""}))
        caller, headers = from_request(body, self._office, self._caller_key)
        note = None
        if isinstance(body, dict) and body.get(PROGRESS_BY) == TOOL_PROGRESS:
            note = partial(self._note, {"agent": body.get("agent"), "req_id": body.get("req_id")})
        answer = await self.computer.dispatcher.dispatch(row, caller, body, headers=headers, note=note)
        if len(answer.body) > self._max_body:
            return _failed(TooLarge(ANSWER_TOO_LARGE, details={"size": len(answer.body), "limit": self._max_body}))
        return answer.body or b"null"

    def _note(self, call: Mapping[str, object], note: bytes) -> None:
        if (connection := self.link.connection) is not None:
            told = connection.tell(TOOL_PROGRESS, {**call, **exact_json.read(note)})
            self.computer.tasks.start(told, name="tool progress")

    def _heard(self, event: str, data: Mapping[str, Any]) -> None:
        """Follows cancels, and Agents that leave. The gateway cancels their calls; one that waits for an answer ends
        with its elicitation."""
        try:
            if event == "notify:tool_call_cancel":
                caller, _ = from_request(data, self._office, self._caller_key)
                self.computer.calls.cancel(AgentCallData.model_validate(data), caller.subject)
            elif event == "notify:leave_office" and (agent := LeaveOfficeNotification.model_validate(data).agent):
                self.computer.resources.subscriptions.left(agent)
        except ValidationError:
            _log.warning("a notification that cannot be read was ignored")


def _failed(error: SmcpError) -> bytes:
    return failed(error.body()).body
