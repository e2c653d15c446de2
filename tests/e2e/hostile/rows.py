"""Whether an input was answered as its row says: the catalog's, the registry contract's, or the path's of HTTP.

The codes of a refusal are those of `docs/asyncapi.yaml` (`x-errors`). Each check returns why the answer is wrong, or an
empty text.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from mcp import types as mcp_types
from pydantic import BaseModel, TypeAdapter, ValidationError

from docs.contract import words
from docs.contract.messages import BUS_REPLIES
from smcp_bus import registry_contract
from smcp_bus.subjects import HOSTS, verb_of
from smcp_proto import catalog
from smcp_proto.catalog import Row
from smcp_proto.errors import LONGEST_ERROR, ErrorBody, ErrorCode
from smcp_proto.validation import malformed
from tests.e2e.hostile.mutations import OWN_ERROR, TEXTS

INTERNAL: Final = "internal error"
"""The message of a 500 by the system itself. One for a Computer's unreadable answer has another."""
MEMBERS: Final = frozenset(map(int, words.COMMON_ERRORS)) - {ErrorCode.NOT_AUTHENTICATED, ErrorCode.INTERNAL}
"""What a member, which is authenticated, may be refused with. A fault of ours is none of them."""
ASKED: Final = frozenset(map(int, words.CLIENT_ERRORS))
"""What a request to a Computer may be refused with, too."""
OF_COMPUTERS: Final = (MEMBERS | ASKED | {int(ErrorCode.INTERNAL), *range(4006, 4020)}) - {ErrorCode.NOT_IN_OFFICE}
"""Codes that a hostile Computer may send or cause; none is of the Agent's own connection."""
BUSY: Final = frozenset(map(int, (ErrorCode.TOO_LARGE, ErrorCode.RATE_LIMITED, ErrorCode.UNAVAILABLE)))
"""Refusals that do not depend on what the request says."""
HALF_A_PAIR: Final = "\\ud800"
"""A lone surrogate in JSON: no field that has one is valid."""


def wrong_acknowledgement(event: str, said: object, answer: Any, agent: str | None) -> str:
    """For the acknowledgement of what a member sent. `agent`: the member's name, if it is one."""
    row = catalog.lookup(event)
    if event in catalog.SAID_AS:  # what native Computers tell the registry is not for clients
        said_to_be = answer["details"].get("field") if _is_error(answer) else None
        return wrong_error(answer, MEMBERS) or ("" if said_to_be == "" else f"it names {said_to_be!r}")
    if row is None:
        return wrong_error(answer, MEMBERS)
    return _wrong_verdict(row, answer, said, agent) or wrong_reply(row, answer)


def wrong_reply(row: Row, answer: Any) -> str:
    if _is_error(answer):
        return wrong_error(answer, MEMBERS | (ASKED if row.event.startswith("client:") else set()))
    if row.reply is not None:
        payload = answer.get("payload") if isinstance(answer, dict) else None
        error = payload.get("error") if isinstance(payload, dict) else None
        is_ours = isinstance(error, dict) and error.get("message") == INTERNAL
        return INTERNAL if is_ours else _wrong_model(row.reply, answer)
    return "" if answer is None else f"an update is answered with {answer!r}"


def wrong_relayed(answer: Any, said: Any) -> str:
    """For what a hostile Computer's Agent gets. `said`: what the Computer sent, None: no JSON."""
    if not _is_error(answer):
        timed_out = isinstance(answer, dict) and (answer.get("meta") or {}).get("a2c_timeout") is True
        return "" if answer == said or timed_out else "it is not what the Computer sent"
    if answer["code"] not in OF_COMPUTERS:
        return f"no Computer may say {answer['code']}"
    return "it is too long" if len(json.dumps(answer)) > 2 * LONGEST_ERROR else ""


def wrong_answer_on_the_bus(subject: str, code: str | None, body: bytes) -> str:
    """For a registry's answer. `code`: as its header says, None: it is a success."""
    prefix, verb = "hosts" if subject.startswith(HOSTS) else "server", verb_of(subject)
    row = registry_contract.ROWS.get((prefix, verb)) or catalog.by_verb(prefix, verb)
    if code is not None:
        error = _json(body)
        allowed = MEMBERS | ({int(ErrorCode.NOT_FOUND)} if row is None else set())
        return wrong_error(error, allowed) or ("" if str(error["code"]) == code else f"the header says {code}")
    if row is None:
        return "an unknown verb must not succeed"
    reply = BUS_REPLIES.get(row.event, row.reply)
    if reply is None:
        return "" if body in (b"", b"null", b"{}") else f"a success says {body[:100]!r}"
    return _wrong_model(reply, _json(body))


def wrong_error(error: Any, allowed: Collection[int]) -> str:
    try:
        body = ErrorBody.model_validate(error, strict=True)
    except ValidationError as wrong:
        return f"no flat error: {wrong}"
    if body.code not in allowed:
        return f"the row has no {body.code}"
    if body.message in ("", INTERNAL) or "Traceback" in body.message:
        return f"its message is {body.message!r}"
    if len(json.dumps(error)) > 2 * LONGEST_ERROR:
        return "it is too long"
    if body.code == ErrorCode.MALFORMED and not isinstance(body.details.get("field"), str):
        return "a 400 has to name its field"
    if body.code == ErrorCode.TOO_LARGE and not isinstance(body.details.get("limit"), int):
        return "a 413 has to say the limit"
    return ""


def _wrong_verdict(row: Row, answer: Any, said: object, agent: str | None) -> str:
    """Whether a request that its model refuses is a 400 that names the field."""
    code = answer["code"] if _is_error(answer) else None
    if code in BUSY:
        return ""
    if HALF_A_PAIR in json.dumps(said):
        return "" if code == ErrorCode.MALFORMED else f"half a surrogate pair is answered with {answer!r}"
    faults = {_fault(row, said)}
    if agent is not None and isinstance(said, dict):  # its gateway writes its name into some requests
        faults.add(_fault(row, said | {"agent": agent}))
    if None in faults:
        return ""
    field = answer["details"].get("field") if code == ErrorCode.MALFORMED else None
    return "" if field in faults else f"{faults} is wrong, and the answer is {str(answer)[:300]}"


def _fault(row: Row, said: object) -> str | None:
    """The field for which the request is refused; None: it is not."""
    if not isinstance(said, dict):
        return ""
    try:
        row.request.model_validate(said)
    except ValidationError as error:
        return str(malformed(error).details["field"])
    return None


def _is_error(answer: Any) -> bool:
    return isinstance(answer, dict) and isinstance(answer.get("code"), int) and "message" in answer


def _wrong_model(model: type[BaseModel], answer: Any) -> str:
    try:
        model.model_validate(answer)
    except ValidationError as wrong:
        return f"no {model.__name__}: {wrong}"
    return ""


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


REQUEST_LINE: Final = re.compile(rb"(\S+) (\S+) HTTP/")
EDGE: Final = frozenset({400, 403, 405, 413, 415, 417, 429})
"""Statuses of all paths: refused before routing, or for the method."""
HEALTH: Final[Mapping[str, Collection[int]]] = {"/livez": {200}, "/readyz": {200, 503}}
GATEWAY: Final[Mapping[str, Collection[int]]] = {**HEALTH, "/socket.io/": {101, 200, 400, 401}}
HEALTH_PORT: Final[Mapping[str, Collection[int]]] = {**HEALTH, "/metrics": {200}, "/statz": {200, 404}}
MCP: Final[Mapping[str, Collection[int]]] = {"/mcp": {400, 401}, "/mcp/third": {401}, "/mcp/%ff": {400, 401}}
FIELDS: Final[Mapping[int, Collection[str]]] = {403: ("Host", "Origin"), 415: ("Content-Encoding",)}


def wrong_status(paths: Mapping[str, Collection[int]], request: bytes, status: int, body: bytes) -> str:
    """For a request without a token. `paths`: the statuses of each; 404 for all others."""
    line = REQUEST_LINE.match(request)
    path = "" if line is None else line[2].decode("latin-1").partition("?")[0]
    allowed = EDGE | {*paths.get(path, {404})}
    if status not in allowed:
        return f"{path!r} has no {status}"
    said = _json(body)
    if status in FIELDS and not request.startswith(b"HEAD "):
        if not isinstance(said, dict):
            return f"a {status} says {body[:100]!r}"
        error = said.get("error")
        field = error["data"]["field"] if isinstance(error, dict) else said["details"]["field"]
        return "" if field in FIELDS[status] else f"a {status} for {field!r}"
    return ""


RESULTS: Final[Mapping[str, tuple[type[BaseModel], ...]]] = {
    "initialize": (mcp_types.InitializeResult,),
    "server/discover": (mcp_types.DiscoverResult,),
    "ping": (mcp_types.EmptyResult,),
    "tools/list": (mcp_types.ListToolsResult,),
    "tools/call": (mcp_types.CallToolResult, mcp_types.InputRequiredResult),
    "resources/list": (mcp_types.ListResourcesResult,),
    "resources/templates/list": (mcp_types.ListResourceTemplatesResult,),
    "resources/read": (mcp_types.ReadResourceResult,),
    "prompts/list": (mcp_types.ListPromptsResult,),
    "prompts/get": (mcp_types.GetPromptResult,),
    "completion/complete": (mcp_types.CompleteResult,),
}
"""Of requests to smcp-mcp; any other is answered with an empty result, a stream, or an error."""
MCP_STATUSES: Final = frozenset({200, 202, 400, 404, 405, 406, 408, 409, 413, 415, 429})
FAILED: Final = frozenset({0, -32603})
"""Codes of an internal error: the MCP SDK's in a session, and JSON-RPC's, which is also that of what an office refuses
for another reason than the request."""
REFUSED: Final = re.compile(r"error (404|408|413|429|503): ")
REFUSED_FOR_A_COMPUTER: Final = re.compile(
    rf"error \d+: (?!{INTERNAL})|the (content of|prompt) .* is not valid in MCP$|({'|'.join(map(re.escape, TEXTS))})$"
    rf"|{OWN_ERROR}",
    re.DOTALL,
)
"""The same where the Computer that is asked is hostile: its MCP errors have any code and message."""


def wrong_mcp_answer(request: bytes, status: int, kind: str, text: str, refused: re.Pattern[str] = REFUSED) -> str:
    """For a request of a client with a token. `kind`: the answer's `Content-Type`; `text` may be the beginning of a
    stream; `refused`: the messages that an error with a code of `FAILED` may have."""
    if status not in MCP_STATUSES:
        return f"there is no {status}"
    if kind.startswith("text/event-stream"):
        messages = [line.removeprefix("data:").strip() for line in text.split("\n") if line.startswith("data:")]
    elif status == 202 or not text:
        return f"a {status} says {text[:100]!r}" if text else ""
    elif status == 400 and text == "Invalid Content-Type header":  # the MCP SDK's
        return ""
    else:
        messages = [text]
    for message in filter(None, messages):  # an event without data begins a stream
        if wrong := _wrong_message(_json(request), status, message, refused):
            return wrong
    return ""


def _wrong_message(request: Any, status: int, text: str, refused: re.Pattern[str]) -> str:
    try:
        message = _MESSAGE.validate_json(text)
    except ValidationError as wrong:
        return f"no JSON-RPC: {wrong}"
    if isinstance(message, mcp_types.JSONRPCError):
        failed = message.error.code in FAILED and not refused.match(message.error.message)
        return f"an internal error: {message.error.message}" if failed else ""
    if status != 200:
        return f"a {status} is not an error"
    if not isinstance(message, mcp_types.JSONRPCResponse) or not isinstance(request, dict):
        return ""
    if message.id != request.get("id"):
        return f"it answers {message.id!r}"
    models = RESULTS.get(str(request.get("method")), ())
    wrongs = [_wrong_model(model, message.result) for model in models]
    return "" if "" in wrongs or not wrongs else wrongs[0]


_MESSAGE: Final[TypeAdapter[mcp_types.JSONRPCMessage]] = TypeAdapter(mcp_types.JSONRPCMessage)
