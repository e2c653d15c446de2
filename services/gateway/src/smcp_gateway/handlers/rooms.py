"""Handles the room events (events.txt), `server:update_*`, and lists of resources over an office.

In such a list each page has the items of one Computer, named in the envelope, in order of the Computers' names. A
Computer that cannot be listed is left out and reported.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import BaseModel

from smcp_auth.grants import decide
from smcp_auth.quotas import Quotas
from smcp_bus import exact_json
from smcp_bus.bus import BodyTooLarge, BusError, TransferFailed
from smcp_bus.dispatch import Answer, Call, Handler
from smcp_bus.outbox import UPDATED, Key
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion, capabilities_text
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.handlers.relay import Relay
from smcp_gateway.rooms.memberships import Memberships, Repair
from smcp_gateway.rooms.offices import Offices
from smcp_gateway.sockets.packet import largest_reply
from smcp_gateway.sockets.session import Membership, Sessions
from smcp_proto import schemas
from smcp_proto.errors import NOT_A_MEMBER, Internal, Malformed, NotFound, NotInOffice, SmcpCode, SmcpError, Unavailable
from smcp_proto.member_names import check_name
from smcp_proto.schemas.resources import MAX_CURSOR
from smcp_proto.schemas.rooms import RESTARTS
from smcp_proto.validation import CURSOR_FIELD, read_cursor, refused, write_cursor

SHARE_S: Final = 5.0
"""How long one Computer may take (seconds)."""
ITEMS: Final = {"resources_list": "resources", "resources_templates_list": "resourceTemplates"}
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602

_log: Final = logging.getLogger("smcp_gateway.list_resources")

Request = schemas.ListResourcesReq | schemas.ListResourceTemplatesReq


_MARK: Final = "office"


def office_cursor(verb: str, computer: str, inner: str | None) -> str | None:
    """A list goes on at the Computer's cursor `inner`, or after that Computer (None). Returns None: too long."""
    text = write_cursor([_MARK, verb, computer, inner])
    return text if len(text) <= MAX_CURSOR else None


def read_office_cursor(text: str, verb: str) -> tuple[str, str | None]:
    """The Computer and its own cursor. Raises Malformed: no cursor of this list."""
    with suppress(ValueError):
        match read_cursor(text):
            case [mark, str(of), str(computer), str() | None as inner] if (mark, of) == (_MARK, verb):
                return check_name(computer), inner
    raise unreadable()


def unreadable() -> Malformed:
    return refused(CURSOR_FIELD, "is not a cursor of this list")


@dataclass(eq=False, repr=False)
class ListResources:
    """Takes the Computers from the office's roster: those that the Agent knows of (ADR 0018)."""

    relay: Relay
    offices: Offices
    skipped: int = field(default=0, init=False)

    async def __call__(self, request: Request, call: Call) -> Answer:
        """The answer of the named Computer, or the next page over all of them. Raises Malformed (this list did not give
        the cursor), NotInOffice (the Agent has just left), or what `Relay` raises for a named Computer."""
        if request.computerId is not None:
            return await self.relay(request, call)
        params = request.payload.params
        cursor = None if params is None or params.cursor is None else read_office_cursor(params.cursor, call.row.verb)
        office = self.offices.get(call.caller.office or "")
        if office is None:
            raise NotInOffice(NOT_A_MEMBER)
        rights = call.caller.rights
        names = sorted(
            name
            for role, name in office.roster.present
            if role == "computer" and (rights is None or rights.may_ask(name))
        )
        return Answer(exact_json.written(await self._page(request, call, list(_rest(names, cursor)))))

    async def _page(self, request: Request, call: Call, rest: list[tuple[str, str | None]]) -> dict[str, Any]:
        """The page of the first of these Computers; empty where it gives none, or there are no more."""
        verb, page, cursor = call.row.verb, None, None
        left_out: list[str] = []
        if rest:
            name, inner = rest[0]
            page = await self._ask(request, call, name, inner, left_out)
            following = None if page is None else page["payload"]["result"].get("nextCursor") or None
            if following is not None and (following == inner or not (cursor := office_cursor(verb, name, following))):
                self._leave_out(name, left_out)  # the same cursor again, or too long a one: for the rest of its list
            if cursor is None and len(rest) > 1:
                cursor = office_cursor(verb, name, None)
            page = page and {**page, "computerId": name}
        return _reply(request, page or {"payload": {"result": {ITEMS[verb]: []}}}, cursor, left_out)

    async def _ask(
        self, request: Request, call: Call, name: str, inner: str | None, left_out: list[str]
    ) -> dict[str, Any] | None:
        """A Computer's page; None: it gives none. It is reported, unless it has left or has no resources."""
        deadline = min(asyncio.get_running_loop().time() + SHARE_S, call.deadline)
        page_call = replace(call, payload=_addressed(call.payload, name, inner), deadline=deadline)
        try:
            answer = await self.relay(request.model_copy(update={"computerId": name}), page_call)
            session = self.relay.sessions.get(call.caller.session)
            if session is not None and len(answer.body) <= largest_reply(session.max_message):
                return await read_page(answer.body, call.row.verb)
        except SmcpError as error:
            if inner is not None and isinstance(error, Malformed) and error.details.get("field") == CURSOR_FIELD:
                raise unreadable() from None
            if isinstance(error, NotFound) or error.details.get("smcp_code") == SmcpCode.NOT_SUPPORTED:
                return None
        except (BodyTooLarge, TransferFailed):  # only this Computer is left out
            pass
        self._leave_out(name, left_out)
        return None

    def _leave_out(self, name: str, left_out: list[str]) -> None:
        _log.info("a Computer is left out of a list over its office", extra={"computer": name})
        self.skipped += 1
        left_out.append(name)


def _rest(names: list[str], cursor: tuple[str, str | None] | None) -> Iterator[tuple[str, str | None]]:
    at, inner = cursor or ("", None)
    for name in names:
        if name > at:
            yield name, None
        elif name == at and inner is not None:
            yield name, inner


def _addressed(payload: Any, name: str, inner: str | None) -> dict[str, Any]:
    message = payload["payload"]
    params = {**(message.get("params") or {}), "cursor": inner}
    if inner is None:
        del params["cursor"]
    return {**payload, "computerId": name, "payload": {**message, "params": params}}


async def read_page(answer: bytes, verb: str) -> dict[str, Any]:
    """A Computer's page: the envelope around a result with items. Raises Malformed (the Computer refused the cursor),
    NotFound (it has no resources), Internal (it is not a page), TooLarge."""
    envelope = await exact_json.read_answer(answer, "the page")
    match envelope.get("payload"):
        case {"error": {**error}}:
            code, data = error.get("code"), error.get("data")
            if code == INVALID_PARAMS:
                raise unreadable()
            if code == METHOD_NOT_FOUND or (isinstance(data, dict) and data.get("smcp_code") == SmcpCode.NOT_SUPPORTED):
                raise NotFound("it has no resources")
        case {"result": {**result}}:
            if isinstance(result.get(ITEMS[verb]), list) and isinstance(result.get("nextCursor"), str | None):
                return envelope
    raise Internal("the answer is not a page")


def _reply(request: Request, page: dict[str, Any], cursor: str | None, left_out: list[str]) -> dict[str, Any]:
    message = page["payload"]
    result = {key: value for key, value in message["result"].items() if key != "nextCursor"}
    if cursor is not None:
        result["nextCursor"] = cursor
    if left_out:
        meta = result.get("meta")
        result["meta"] = {**(meta if isinstance(meta, dict) else {}), "a2c_skipped": left_out}
    payload = {**message, "jsonrpc": "2.0", "id": request.payload.id, "result": result}
    return {**page, "roomId": request.roomId, "payload": payload}


def metered(handler: Handler, quotas: Quotas, sessions: Sessions) -> Handler:
    """Put the quota of reads before the handler of an event that makes MCP servers work."""

    async def limited(request: Any, call: Call) -> Any:
        session = sessions.get(call.caller.session)
        if session is not None:
            quotas.read(session)
        return await handler(request, call)

    return limited


async def resource_updated(
    request: schemas.ResourceUpdatedNotification, call: Call, *, computers: ComputerTable
) -> None:
    """Pass `notify:resources/updated` of a Computer on, once for each subscribed Agent, with that Agent's name."""
    if request.computerId is None:
        raise refused("computerId", "is missing")
    owned = computers.of(call.caller.session, call.caller.seat[0])
    if owned is None:
        return  # it has just left
    server, uri = request.serverId, request.payload.params.uri
    for agent in owned.subscriptions.agents(server, uri):
        if request.agent in (None, agent):
            owned.updates.put(Key(UPDATED, server, uri, agent), exact_json.written({**call.payload, "agent": agent}))


@dataclass(eq=False, repr=False)
class Rooms:
    sessions: Sessions
    memberships: Memberships
    quotas: Quotas
    repair: Repair

    async def join_office(self, request: schemas.EnterOfficeReq, call: Call) -> None:
        session = self.sessions.get(call.caller.session)
        if session is not None:
            if session.principal is not None:
                grants = session.principal.grants
                refusal = decide(grants, office=request.office_id, role=request.role, name=request.name)
                if refusal is not None:
                    raise refusal
            if session.membership is None or session.membership.office != request.office_id:
                office = self.memberships.offices.get(request.office_id)
                self.quotas.join(session, request.office_id, 0 if office is None else office.holders)
            await self.memberships.join(session, request, exact_json.written(call.payload), call)

    async def leave_office(self, request: schemas.LeaveOfficeReq, call: Call) -> None:
        session = self.sessions.get(call.caller.session)
        if session is None:
            return
        if session.role == "computer" and (request.model_extra or {}).get(RESTARTS) is True:
            session.leaving = session.restarts = True  # no new requests of it begin
            if not await self.repair.keep_seat(session):
                raise Unavailable("no registry can keep the seat; retry")
        else:
            await self.memberships.leave(session, request.office_id, call)

    async def list_room(self, request: schemas.ListRoomReq, call: Call) -> Answer:
        membership = self._membership(call)
        body = request.model_dump_json(exclude_unset=True).encode()
        office = self.memberships.offices.get(membership.office)
        # the answering registry must know at least what the caller has heard
        after = max(membership.revision, 0 if office is None else office.roster.revision)
        return Answer(await self.memberships.registry.list_room(membership.seat, body, after=after))

    async def update(self, request: BaseModel, call: Call) -> None:
        """Pass the event on unchanged, after the Computer's waiting resource updates."""
        membership, loop = self._membership(call), asyncio.get_running_loop()
        ends = loop.time() + self.memberships.registry.room_s
        owned = self.memberships.computers.of(call.caller.session, membership.office)
        if owned is not None:
            owned.read_only_hints = {}
            with suppress(BusError, SmcpError, TimeoutError):  # they are retried later; this event is not
                async with asyncio.timeout_at(ends):
                    await owned.updates.flush()
        body, left = exact_json.written(call.payload), ends - loop.time()
        await self.memberships.registry.tell(membership.seat, call.row.verb, body, timeout=left, req_id=call.req_id)
        if isinstance(request, schemas.UpdateCapabilitiesReq):
            # if the registry loses the record, the claim restores it
            update = {"capabilities": capabilities_text(request.capabilities)}
            membership.claim = membership.claim.model_copy(update=update)

    async def tool_progress(self, request: schemas.ToolProgressReq, call: Call) -> None:
        """Progress of a call at a Computer on Socket.IO: for the caller, not for the office."""
        owned = self.memberships.computers.of(call.caller.session, call.caller.office or "")
        if owned is not None:  # else it has just left
            self.memberships.computers.owner.progressed(owned.seat, request)

    def _membership(self, call: Call) -> Membership:
        session = self.sessions.get(call.caller.session)
        if session is None or session.membership is None:
            raise NotInOffice(NOT_A_MEMBER)
        return session.membership


async def alive(request: AliveQuestion, call: Call, *, sessions: Sessions) -> AliveAnswer:
    return AliveAnswer(session=sessions.holds(request))
