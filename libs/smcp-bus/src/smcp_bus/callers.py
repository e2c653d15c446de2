"""Who calls: the caller of a request, and what the holder of its key or token may ask of Computers.

A gateway checks the names that a key or token allows, and leaves what is not allowed out of answers. It tells the owner
of a Computer who calls in headers on the bus, and a Computer on Socket.IO in the field `a2c_caller`, if it asked for it
with a key of its own (`caller_key` in `auth`): a field without that key was written by an Agent.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from smcp_bus import exact_json
from smcp_bus.bus import NO_HEADERS, Headers
from smcp_bus.headers import RIGHTS, SUBJECT, TRACEPARENT, TRACESTATE
from smcp_proto.errors import NOT_A_MEMBER, NotAllowed, NotInOffice
from smcp_proto.member_names import Role, matches
from smcp_proto.schemas.tools import OnBehalf

DELEGATES: Final = "delegates"
"""In CONNECT's `auth`, true: the client will call for users, so a token that may not is refused at once."""
CALLER_KEY: Final = "caller_key"
FIELD: Final = "a2c_caller"
"""The field of a request: `{"key", "subject", "rights"?, "traceparent"?, "tracestate"?}`."""
ANY: Final = ("*",)
ANNOTATION: Final = "MCP_TOOL_ANNOTATION"
"""The key in a tool's `meta` under which a Computer lists the annotations of its MCP server, as a JSON text."""
_EMPTY_TOOL_FIELDS: Final[Mapping[str, Any]] = {"tool_meta": {}, "forbidden_tools": []}
"""Hidden in a server's configuration: they have the tools' original names, and the rights' patterns are for others."""
PAUSE_AT: Final = 256
"""Tools that are compared with the patterns of a token without a pause: it takes up to 15 ms."""


class Rights(BaseModel):
    """What a key or token allows. What a newer gateway adds is ignored: it checks that itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    holder: str
    """The subject as the key or token says it."""
    computers: tuple[str, ...] = ANY
    tools: tuple[str, ...] = ANY
    delegate_tools: tuple[str, ...] = ANY
    """Those of the Agent that calls for the holder: a tool has to match both lists."""
    read_only: bool = False
    delegate: str = ""
    """The subject of that Agent, as its key or token says it; empty: the holder calls itself."""

    @property
    def restricts_tools(self) -> bool:
        return self.read_only or self.tools != ANY or self.delegate_tools != ANY

    def may_ask(self, computer: str) -> bool:
        return _any(self.computers, computer)

    def may_name(self, tool: str) -> bool:
        return _any(self.tools, tool) and _any(self.delegate_tools, tool)

    def check_tool(self, tool: str, *, read_only: bool | None = None) -> None:
        """Raises NotAllowed (`details.field`).

        Args:
            tool: the name under which it is listed.
            read_only: what its annotation says; None: not known here.
        """
        if not self.may_name(tool):
            raise NotAllowed("the key or token is not for this tool", details={"field": "tool_name"})
        if self.read_only and read_only is False:
            raise NotAllowed(
                "the key or token is for tools that only read (readOnlyHint), and this one may change something",
                details={"field": "tool_name"},
            )

    def narrowed(self, user: OnBehalf) -> "Rights":
        """The rights of a user for whom the holder of these asks. Both lists of tools are kept; the gateway checks both
        of Computers."""
        return Rights(
            holder=user.subject,
            computers=self.computers if user.computers is None else tuple(user.computers),
            tools=self.tools if user.tools is None else tuple(user.tools),
            delegate_tools=self.tools,
            read_only=self.read_only or user.read_only is True,
            delegate=self.holder,
        )


SeatKey = tuple[str, Role, str]
"""(office, role, name)"""

NOTHING: Final = Rights(holder="", computers=(), tools=())


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller as the transport knows it: from a session or from a subject, never from the payload."""

    role: Role | None
    """None before a session has joined anything."""
    office: str | None = None
    name: str | None = None
    session: str = ""
    authenticated: bool = False
    subject: str = ""
    """The identity of its key or token; empty: without authentication."""
    rights: Rights | None = None
    """What its key or token allows; None: as `subject`."""
    local: bool = False
    """The user of a Computer's own host."""
    address: str = ""
    """Of a gateway's client; for the audit trail."""

    @property
    def seat(self) -> SeatKey:
        """Raises NotInOffice: it is not a member."""
        if self.office is None or self.role is None or self.name is None:
            raise NotInOffice(NOT_A_MEMBER)
        return self.office, self.role, self.name


def to_headers(caller: Caller) -> Headers:
    if caller.rights is None:
        return NO_HEADERS
    return {SUBJECT: caller.subject, RIGHTS: _written(caller.rights)}


def from_headers(headers: Headers, office: str) -> Caller:
    header = headers.get(RIGHTS)
    rights = None if header is None else _read(header)
    return Caller(role="agent", office=office, subject=headers.get(SUBJECT, ""), rights=rights)


def with_caller(
    payload: Mapping[str, Any], caller: Caller, key: str | None, trace: Headers = NO_HEADERS
) -> Mapping[str, Any]:
    """The request for a Computer on Socket.IO.

    Args:
        key: None: it did not ask to be told.
        trace: of the gateway's span, which is the parent of the Computer's; in place of what the Agent said. A
            Computer without a key gets no field that the Agent did not write.
    """
    if trace and (key is not None or TRACEPARENT in payload):
        payload = {**payload, TRACEPARENT: trace[TRACEPARENT]}
    if key is None:
        return payload
    fields: dict[str, Any] = {"key": key, "subject": caller.subject, **trace}
    if caller.rights is not None:
        fields["rights"] = _as_json(caller.rights)
    return {**payload, FIELD: fields}


def from_request(body: object, office: str, key: str) -> tuple[Caller, Headers]:
    """The caller of a request that a gateway sent to a Computer with that key, and the headers of its span."""
    match body:
        case {"a2c_caller": {"key": str(presented), "subject": str(subject), **more}} if hmac.compare_digest(
            presented.encode(errors="replace"), key.encode()
        ):
            known = more.get("rights")
            allowed = None if known is None else _from_json(known)
            trace = {name: span for name in (TRACEPARENT, TRACESTATE) if isinstance(span := more.get(name), str)}
            return Caller(role="agent", office=office, subject=subject, rights=allowed), trace
    return Caller(role="agent", office=office), NO_HEADERS


def _any(patterns: Iterable[str], name: str) -> bool:
    return patterns == ANY or any(matches(pattern, name) for pattern in patterns)


def _as_json(rights: Rights) -> dict[str, Any]:
    """Without the patterns of Computers: a gateway has checked them."""
    return rights.model_dump(mode="json", exclude_defaults=True, exclude={"computers"})


def _from_json(value: object) -> Rights:
    """What `_as_json` gave, or its text. What cannot be read allows nothing."""
    try:
        return Rights.model_validate_json(value) if isinstance(value, str) else Rights.model_validate(value)
    except ValidationError:
        return NOTHING


@lru_cache(maxsize=4096)
def _written(rights: Rights) -> str:
    return json.dumps(_as_json(rights))


_read: Final = lru_cache(maxsize=4096)(_from_json)


def is_read_only(tool: Mapping[str, Any]) -> bool:
    """Whether the server of a listed tool says that it only reads."""
    meta = tool.get("meta")
    annotation = meta.get(ANNOTATION) if isinstance(meta, dict) else None
    try:
        hints = orjson.loads(annotation) if isinstance(annotation, str) else annotation
    except orjson.JSONDecodeError:
        return False
    return isinstance(hints, dict) and hints.get("readOnlyHint") is True


async def read_only_hints(answer: bytes) -> dict[str, bool]:
    """Which tools of a Computer's list, the `answer` to `client:get_tools`, only read, by their names. Raises as
    `exact_json.read_answer`."""
    value = await exact_json.read_answer(answer, "the answer")
    return {name: is_read_only(tool) async for name, tool in _listed(value)}


async def _listed(answer: Mapping[str, Any]) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
    tools = answer.get("tools")
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        if number % PAUSE_AT == 0:
            await asyncio.sleep(0)
        if isinstance(tool, dict) and isinstance(name := tool.get("name"), str):
            yield name, tool


def check_listed(rights: Rights, listed: Mapping[str, bool], name: str) -> None:
    """Check a call by the list of a Computer that does not check it itself. Raises NotAllowed."""
    if name not in listed:
        raise NotAllowed(
            "this Computer lists no tool of this name, and the key or token allows only listed tools",
            details={"field": "tool_name"},
        )
    rights.check_tool(name, read_only=listed[name])


async def without_tools(rights: Rights, event: str, body: bytes) -> bytes:
    """A Computer's answer without the tools that the caller may not call. Raises as `exact_json.read_answer`."""
    if event not in ("client:get_tools", "client:get_config"):
        return body
    answer = await exact_json.read_answer(body, "the answer")
    if event == "client:get_tools" and "tools" in answer:
        answer["tools"] = [tool async for name, tool in _listed(answer) if _is_shown(rights, name, tool)]
    if event == "client:get_config" and "servers" in answer:
        servers = answer["servers"] if isinstance(answer["servers"], dict) else {}
        answer["servers"] = {name: server for name, server in servers.items() if isinstance(server, dict)}
        for server in answer["servers"].values():
            server |= {field: empty for field, empty in _EMPTY_TOOL_FIELDS.items() if field in server}
    return exact_json.written(answer)


def _is_shown(rights: Rights, name: str, tool: Mapping[str, Any]) -> bool:
    return rights.may_name(name) and (not rights.read_only or is_read_only(tool))
