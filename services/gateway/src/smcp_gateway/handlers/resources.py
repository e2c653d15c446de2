"""Lists of resources and templates (`client:resources/list`, `client:resources/templates/list`) of one Computer or over
all of the office, the quota of requests for resources, and the updates that Socket.IO Computers announce.

In a list over the office each page has the items of one Computer, named in the envelope, in order of the Computers'
names. A Computer that cannot be listed is left out and reported.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from pydantic import BaseModel

from smcp_auth.quotas import Quotas
from smcp_bus import exact_json
from smcp_bus.bus import BodyTooLarge, TransferFailed
from smcp_bus.dispatch import Call, Handler, RawJson
from smcp_bus.outbox import UPDATED, Key
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.rooms.offices import Offices
from smcp_gateway.sockets.packet import largest_reply
from smcp_gateway.sockets.session import Sessions
from smcp_proto.errors import NOT_A_MEMBER, ErrorCode, Malformed, NotInOffice, SmcpCode, SmcpError, TooLarge
from smcp_proto.member_names import check_name
from smcp_proto.schemas import ListResourcesReq, ListResourceTemplatesReq, ResourceUpdatedNotification
from smcp_proto.schemas.resources import MAX_CURSOR
from smcp_proto.validation import refused

SHARE_S: Final = 5.0
"""How long one Computer may take (seconds)."""
PAGE_S: Final = 12.0
"""How long to look for a Computer with items (seconds); then the page is empty, and the next page goes on."""
MOST: Final = 32
"""Computers that are asked for one page; after that the page is empty, too."""
ITEMS: Final = {"resources_list": "resources", "resources_templates_list": "resourceTemplates"}
"""By verb: the field of a result with the items."""
SERVERS_LEFT_OUT: Final = "a2c_skipped_servers"
"""In `meta` of a Computer's page: the MCP servers whose items are missing."""
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602

_log: Final = logging.getLogger("smcp_gateway.list_resources")

Request = ListResourcesReq | ListResourceTemplatesReq
Carry = Callable[[BaseModel, Call], Awaitable[RawJson]]
"""`Relay`."""


FIELD: Final = "payload.params.cursor"
_MARK: Final = "office"


@dataclass(frozen=True, slots=True)
class OfficeCursor:
    verb: str
    """The list: of resources or of templates."""
    computer: str
    inner: str | None
    """That Computer's own cursor; None: go on after that Computer."""

    def write(self) -> str | None:
        """The opaque text; None: longer than a cursor may be."""
        fields = orjson.dumps([_MARK, self.verb, self.computer, self.inner])
        text = base64.urlsafe_b64encode(fields).rstrip(b"=").decode()
        return text if len(text) <= MAX_CURSOR else None


def read_cursor(text: str, verb: str) -> OfficeCursor:
    """Read what `OfficeCursor.write` wrote.

    Raises:
        Malformed: not such a text, or of another list; `details.field` is `payload.params.cursor`.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        fields: Any = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, orjson.JSONDecodeError):
        raise unreadable() from None
    match fields:
        case [mark, str(of), str(computer), str() | None as inner] if (mark, of) == (_MARK, verb):
            try:
                return OfficeCursor(verb, check_name(computer), inner)
            except ValueError:
                raise unreadable() from None
    raise unreadable()


def unreadable() -> Malformed:
    return refused(FIELD, "is none that this list gave")


class Skip(Exception):
    """A Computer gives no page. `a2c_skipped` names it, unless it has left or has no resources (`expected`)."""

    def __init__(self, *, expected: bool = False) -> None:
        super().__init__()
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Page:
    envelope: dict[str, Any]
    has_items: bool
    next: str | None
    is_partial: bool
    """Whether it names MCP servers whose items are missing. Such a page is returned even without items."""


class ListResources:
    """Takes the Computers from the office's roster: those that the Agent knows of (ADR 0018)."""

    def __init__(self, relay: Carry, offices: Offices, sessions: Sessions, *, max_values: int) -> None:
        self._relay = relay
        self._offices = offices
        self._sessions = sessions
        self._max_values = max_values
        self._loop = asyncio.get_running_loop()
        self.skipped = 0
        """How often a Computer was left out that failed or was silent."""

    async def __call__(self, request: Request, call: Call) -> RawJson:
        """The answer of the named Computer, or the next page over all of them.

        Raises:
            Malformed: this list did not give the cursor (`details.field`).
            NotInOffice: the Agent has just left.
            SmcpError: as `Relay`, where a Computer is named.
        """
        if request.computerId is not None:
            return await self._relay(request, call)
        params = request.payload.params
        cursor = read_cursor(params.cursor, call.row.verb) if params is not None and params.cursor is not None else None
        office = self._offices.get(call.caller.office or "")
        if office is None:
            raise NotInOffice(NOT_A_MEMBER)
        rights = call.caller.rights
        names = sorted(
            name
            for role, name in office.roster.present
            if role == "computer" and (rights is None or rights.may_ask(name))
        )
        return RawJson(exact_json.written(await self._page(request, call, list(_rest(names, cursor)))))

    async def _page(self, request: Request, call: Call, rest: list[tuple[str, str | None]]) -> dict[str, Any]:
        until = min(self._loop.time() + PAGE_S, call.deadline)
        left_out: list[str] = []
        verb = call.row.verb
        for number, (name, inner) in enumerate(rest):
            share = min(SHARE_S, until - self._loop.time())
            if number and (share < SHARE_S or number == MOST):
                return _empty_reply(request, verb, OfficeCursor(verb, rest[number - 1][0], None).write(), left_out)
            try:
                page = await self._ask(request, call, name, inner, share)
            except Skip as skip:
                if not skip.expected:
                    self._skip(name, left_out)
                continue
            next_cursor = self._next_cursor(page, OfficeCursor(verb, name, page.next), inner, left_out)
            if next_cursor is None and name != rest[-1][0]:
                next_cursor = OfficeCursor(verb, name, None).write()
            if page.has_items or page.next is not None or page.is_partial:
                return _page_reply(page, request, name, next_cursor, left_out)
        return _empty_reply(request, verb, None, left_out)

    async def _ask(self, request: Request, call: Call, name: str, inner: str | None, share: float) -> Page:
        page_call = replace(call, payload=_addressed(call.payload, name, inner), deadline=self._loop.time() + share)
        try:
            answer = await self._relay(request.model_copy(update={"computerId": name}), page_call)
        except SmcpError as error:
            raise _refused(int(error.code), error.details, inner) from None
        except (BodyTooLarge, TransferFailed):  # only this Computer is left out
            raise Skip from None
        session = self._sessions.get(call.caller.session)
        if session is None or len(answer.body) > largest_reply(session.max_message):
            raise Skip
        try:
            return await read_page(answer.body, call.row.verb, inner, self._max_values)
        except TooLarge:
            raise Skip from None

    def _next_cursor(self, page: Page, cursor: OfficeCursor, inner: str | None, left_out: list[str]) -> str | None:
        if page.next is None:
            return None
        text = None if page.next == inner else cursor.write()
        if text is None:  # the same cursor again, or too long a one: leave out the rest of its list
            self._skip(cursor.computer, left_out)
        return text

    def _skip(self, name: str, left_out: list[str]) -> None:
        _log.info("a Computer is left out of a list over its office", extra={"computer": name})
        self.skipped += 1
        left_out.append(name)


def _rest(names: list[str], cursor: OfficeCursor | None) -> Iterator[tuple[str, str | None]]:
    for name in names:
        if cursor is None or name > cursor.computer:
            yield name, None
        elif name == cursor.computer and cursor.inner is not None:
            yield name, cursor.inner


def _addressed(payload: Any, name: str, inner: str | None) -> dict[str, Any]:
    message = payload["payload"]
    params = {**(message.get("params") or {}), "cursor": inner}
    if inner is None:
        del params["cursor"]
    return {**payload, "computerId": name, "payload": {**message, "params": params}}


def _refused(code: int, details: Any, inner: str | None) -> Exception:
    details = details if isinstance(details, dict) else {}
    if inner is not None and code == ErrorCode.MALFORMED and details.get("field") == FIELD:
        return unreadable()
    return Skip(expected=code == ErrorCode.NOT_FOUND or details.get("smcp_code") == SmcpCode.NOT_SUPPORTED)


async def read_page(answer: bytes, verb: str, inner: str | None, most: int) -> Page:
    """A Computer's page.

    Args:
        inner: the cursor that the Computer was given.
        most: how many JSON values the answer may have.

    Raises:
        Skip: the answer is no page. Malformed: the Computer refused the cursor. TooLarge: see `exact_json.read_answer`.
    """
    envelope = await exact_json.read_answer(answer, most, "the page")
    message = envelope.get("payload")
    if not isinstance(message, dict):
        code = envelope.get("code")
        # a Socket.IO Computer sends its errors as plain replies
        raise _refused(code, envelope.get("details"), inner) if isinstance(code, int) else Skip()
    error = message.get("error")
    if isinstance(error, dict):
        data = error.get("data")
        code = data.get("smcp_code") if isinstance(data, dict) else None
        if inner is not None and error.get("code") == INVALID_PARAMS:
            raise unreadable()
        raise Skip(expected=error.get("code") == METHOD_NOT_FOUND or code == SmcpCode.NOT_SUPPORTED)
    match message.get("result"):
        case {**result}:
            items, next_cursor, meta = result.get(ITEMS[verb]), result.get("nextCursor"), result.get("meta")
            if isinstance(items, list) and isinstance(next_cursor, str | None):
                is_partial = isinstance(meta, dict) and bool(meta.get(SERVERS_LEFT_OUT))
                return Page(envelope, bool(items), next_cursor or None, is_partial)
    raise Skip


def _page_reply(
    page: Page, request: Request, name: str, next_cursor: str | None, left_out: list[str]
) -> dict[str, Any]:
    message = page.envelope["payload"]
    payload = {**message, **_message(request, message["result"], next_cursor, left_out)}
    return {**page.envelope, "roomId": request.roomId, "computerId": name, "payload": payload}


def _empty_reply(request: Request, verb: str, next_cursor: str | None, left_out: list[str]) -> dict[str, Any]:
    return {"roomId": request.roomId, "payload": _message(request, {ITEMS[verb]: []}, next_cursor, left_out)}


def _message(request: Request, result: dict[str, Any], next_cursor: str | None, left_out: list[str]) -> dict[str, Any]:
    result = {key: value for key, value in result.items() if key != "nextCursor"}
    if next_cursor is not None:
        result["nextCursor"] = next_cursor
    if left_out:
        meta = result.get("meta")
        result["meta"] = {**(meta if isinstance(meta, dict) else {}), "a2c_skipped": left_out}
    return {"jsonrpc": "2.0", "id": request.payload.id, "result": result}


def metered(handler: Handler, quotas: Quotas, sessions: Sessions) -> Handler:
    """Put the quota of reads before the handler of an event that makes MCP servers work."""

    async def limited(request: Any, call: Call) -> Any:
        session = sessions.get(call.caller.session)
        if session is not None:
            quotas.read(session)
        return await handler(request, call)

    return limited


async def resource_updated(request: ResourceUpdatedNotification, call: Call, *, computers: ComputerTable) -> None:
    """Pass `notify:resources/updated` of a Computer on, once for each subscribed Agent, with that Agent's name.

    Raises:
        Malformed: it names no Computer.
    """
    if request.computerId is None:
        raise Malformed("computerId: is missing", details={"field": "computerId"})
    assert call.caller.office is not None
    owned = computers.of(call.caller.session, call.caller.office)
    if owned is None:
        return  # it has just left
    server, uri = request.serverId, request.payload.params.uri
    for agent in owned.subscriptions.agents(server, uri):
        if request.agent in (None, agent):
            owned.updates.put(Key(UPDATED, server, uri, agent), exact_json.written({**call.payload, "agent": agent}))
