"""The resources and prompts of all Computers of an office, and the completion of their arguments.

A resource keeps its URI where no other Computer had it first; any can also be read as `smcp://<computer>/<its URI>`.
What is not listed (a page of a document, say) is asked of one Computer after the other, first of those that list
something of the same host. `a2c-result://…` is the rest of a result that was cut.
A prompt keeps its name where no other had it first and it does not look like that of another Computer's prompt; else
it is `<computer>__<server>__<its name>`.
"""

import asyncio
import logging
import reprlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError

from smcp_agent.cache import MIB, in_turns, size_of
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import ConnectionLost, Malformed, McpError, NotFound, SmcpError
from smcp_agent.llm import looks_foreign, qualifiers
from smcp_agent.results import LinkContent
from smcp_agent.rpc import JsonObject
from smcp_agent.tool_calls import MAX_CHARS, RESULT_SCHEME
from smcp_proto.errors import SmcpCode

LIST_S: Final = 5.0
"""How long a Computer may take to list something, before it is left out, and to confirm an unsubscribe."""
SCHEME: Final = "smcp://"
PAGE: Final = 2000
PAGE_SIZE: Final = 4 * MIB
"""Items of a page, and what they count (`size_of`): the MCP SDK writes a page in one step of some 50 ms."""
MAX_RETIRED_NAMES: Final = 4096
"""Names and URIs that are kept of tools that are gone, and of Computers that do not answer."""
LONGEST: Final = 1024
"""Characters of such a name or URI: longer ones are not kept."""

logger = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]
_Answer = TypeVar("_Answer")
_Result = TypeVar("_Result", bound=types.Result)
_Place = tuple[str, str | None, str]
"""Computer, MCP server and own name of a prompt."""


async def requested_page(
    method: str, context: Context, kind: type[types.PaginatedResult], key: str, items: Sequence[Any]
) -> JsonObject:
    """The requested page of a list, without the items that the client's version of MCP cannot express. Raises MCPError:
    there is no such page."""
    cursor = (context.params or {}).get("cursor") or "0"
    if not cursor.isdecimal() or len(cursor) > len(str(len(items))):
        raise MCPError(types.INVALID_PARAMS, "there is no such cursor: list from the beginning")
    whole = kind.model_validate({key: []}).model_dump(by_alias=True, mode="json", exclude_none=True)
    first, size, invalid = int(cursor), 0, list[Any]()
    async for number, item in in_turns(enumerate(items[first:], first)):
        size += size_of(item)
        if number == first + PAGE or (size > PAGE_SIZE and number > first):
            whole["nextCursor"] = str(number)
            break
        try:
            serialize_server_result(method, context.protocol_version, {**whole, key: [item]})
        except ValidationError:
            invalid.append(item)
        else:
            whole[key].append(item)
    if invalid:
        what = "%s: %d items are not valid in MCP, and left out; the first is %s"
        logger.warning(what, method, len(invalid), reprlib.repr(invalid[0]))
    return whole


async def ask_each(computers: Sequence[str], what: str, ask: Callable[[str], Awaitable[_Answer]]) -> dict[str, _Answer]:
    """The answers of the Computers that answer, by name."""
    found: dict[str, _Answer] = {}

    async def one(computer: str) -> None:
        try:
            async with asyncio.timeout(LIST_S):
                found[computer] = await ask(computer)
        except (SmcpError, TimeoutError) as error:
            why = str(error) or f"no answer within {LIST_S:g} s"
            logger.warning("the %s of %r are left out: %s", what, computer, why)

    await asyncio.gather(*map(one, computers))
    return {computer: found[computer] for computer in computers if computer in found}


async def _valid(kind: type[_Result], key: str, found: JsonObject, what: str) -> _Result:
    """A result with thousands of items under `key`. Raises MCPError."""
    try:
        whole = kind.model_validate({**found, key: []})
        async for item in in_turns(found[key]):
            getattr(whole, key).extend(getattr(kind.model_validate({key: [item]}), key))
    except ValidationError:
        raise MCPError(types.INTERNAL_ERROR, f"{what} is not valid in MCP") from None
    return whole


def _all_of(items: Callable[[str], AsyncIterator[JsonObject]]) -> Callable[[str], Awaitable[list[JsonObject]]]:
    async def of(computer: str) -> list[JsonObject]:
        return [each async for each in items(computer)]

    return of


def mcp_error(error: SmcpError) -> MCPError:
    """The error for an MCP client whose request the office refused; an MCP server's own error stays as it is."""
    if isinstance(error, McpError):
        return MCPError(error.rpc_code, error.message, error.data)
    code = types.INVALID_PARAMS if isinstance(error, Malformed) else types.INTERNAL_ERROR
    # the gateway's may name other Computers, which this client may not ask
    has_left = isinstance(error, NotFound) and error.smcp_code is None
    message = "its Computer has left the office" if has_left else error.message
    return MCPError(code, f"error {int(error.code)}: {message}")


def no_resource(uri: str) -> MCPError:
    """The error for a resource that is not there, or at a Computer that the client may not ask: nobody learns which."""
    return MCPError(types.INVALID_PARAMS, "no Computer that you may ask has this resource", {"uri": uri})


@dataclass(eq=False, repr=False)
class OfficeResources:
    """The part of the office's MCP server that lists and reads resources. Arguments: those of `OfficeServer`."""

    agent: SmcpAgent
    server: InitVar[Server[Any]]
    may_ask: Callable[[Context, str], bool]
    max_chars: Callable[[Context], int | None]
    _owners: dict[str, str] = field(default_factory=dict, init=False)
    """The Computer of each URI that is listed as it is."""

    def __post_init__(self, server: Server[Any]) -> None:
        server.add_request_handler("resources/list", types.PaginatedRequestParams, self._list)
        server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, self._list_templates)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, self._read)

    async def _list(self, context: Context, _: types.PaginatedRequestParams) -> JsonObject:
        found = await ask_each(self.computers(context), "resources", self.agent.resources)
        own = {computer: {each["uri"]: each for each in resources} for computer, resources in found.items()}
        silent = set(self.agent.computers()) - own.keys()
        kept = ((uri, of) for uri, of in self._owners.items() if of in silent and len(uri) <= LONGEST)
        self._owners = dict(islice(kept, MAX_RETIRED_NAMES)) | {
            uri: of for uri, of in self._owners.items() if uri in own.get(of, ())
        }
        listed = []
        for computer, resources in own.items():
            for uri, each in resources.items():
                owned = self._owners.setdefault(uri, computer) == computer
                listed.append(each if owned else {**each, "uri": f"{SCHEME}{quote(computer, safe='')}/{uri}"})
        return await requested_page("resources/list", context, types.ListResourcesResult, "resources", listed)

    async def _list_templates(self, context: Context, _: types.PaginatedRequestParams) -> JsonObject:
        found = await ask_each(self.computers(context), "templates", _all_of(self.agent.iter_resource_templates))
        listed = {each["uriTemplate"]: each for templates in found.values() for each in templates}
        method, kind = "resources/templates/list", types.ListResourceTemplatesResult
        return await requested_page(method, context, kind, "resourceTemplates", list(listed.values()))

    async def _read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if params.uri.startswith(RESULT_SCHEME):
            return self._read_result(context, params.uri)
        found = (await self._first(context, params.uri, self.agent.read_contents))[2].raw
        contents = [{**each, "uri": _as_asked(each["uri"], params.uri)} for each in found["contents"]]
        whole = {**found, "contents": contents}
        return await _valid(types.ReadResourceResult, "contents", whole, f"the content of {params.uri}")

    def _read_result(self, context: Context, uri: str) -> types.ReadResourceResult:
        """A page of a result that was cut; a second content has the URI of the next page, and says so."""
        try:
            page = self.agent.read_result(uri, max_chars=self.max_chars(context) or MAX_CHARS)
        except (Malformed, NotFound) as error:
            raise MCPError(types.INVALID_PARAMS, error.message, {"uri": uri}) from None
        more = [each for each in page.content if isinstance(each, LinkContent)]
        contents = [{"uri": uri, "mimeType": "text/plain", "text": page.text}]
        contents += [{"uri": each.uri, "mimeType": "text/plain", "text": each.name} for each in more]
        return types.ReadResourceResult.model_validate({"contents": contents})

    async def complete(
        self, context: Context, template: str, argument: str, value: str, chosen: Mapping[str, str] | None
    ) -> JsonObject:
        """What an argument of a template may be, by the first Computer that knows. Raises MCPError."""

        async def ask(computer: str, own: str) -> JsonObject:
            return await self.agent.complete(computer, own, argument, value, chosen=chosen)

        return (await self._first(context, template, ask))[2]

    async def subscribe(self, context: Context, uri: str) -> tuple[str, str]:
        """Subscribe to a resource at its Computer; returns the Computer and the URI there. Raises MCPError."""
        return (await self._first(context, uri, self.agent.subscribe_resource))[:2]

    def computers(self, context: Context) -> list[str]:
        """The Computers that the client of this request may ask."""
        return [computer for computer in self.agent.computers() if self.may_ask(context, computer)]

    async def _first(
        self, context: Context, uri: str, ask: Callable[[str, str], Awaitable[_Answer]]
    ) -> tuple[str, str, _Answer]:
        """The first answer to a query about a URI, with its Computer and the URI there. Raises MCPError."""
        refused: SmcpError = NotFound("there is no Computer in the office")
        computers, own = self._candidates(context, uri)
        for computer in computers:
            try:
                return computer, own, await ask(computer, own)
            except SmcpError as error:
                refused = error
                if isinstance(error, ConnectionLost) or (isinstance(error, McpError) and error.smcp_code is None):
                    break  # nobody can be asked, or an MCP server has it, and does not give it
        unknown = isinstance(refused, McpError) and refused.smcp_code == SmcpCode.NOT_FOUND
        if unknown and uri.startswith(SCHEME):
            raise MCPError(types.INVALID_PARAMS, refused.message, {"uri": uri}) from None
        if unknown or isinstance(refused, NotFound):
            raise no_resource(uri) from None
        raise mcp_error(refused) from None

    def _candidates(self, context: Context, uri: str) -> tuple[list[str], str]:
        if uri.startswith(SCHEME):
            quoted, _, own = uri.removeprefix(SCHEME).partition("/")
            computer = unquote(quoted)
            return [computer] if self.may_ask(context, computer) else [], own
        if uri in self._owners and self.may_ask(context, self._owners[uri]):
            return [self._owners[uri]], uri
        host = uri.split("/", 3)[:3]
        near = {computer for listed, computer in self._owners.items() if listed.split("/", 3)[:3] == host}
        return sorted(self.computers(context), key=lambda computer: computer not in near), uri


def _as_asked(uri: str, requested: str) -> str:
    """The URI of a content, with the Computer before it where the client asked so."""
    return requested if requested.startswith(SCHEME) and requested.endswith(f"/{uri}") else uri


class OfficePrompts:
    """The part of the office's MCP server that lists and fills in prompts, and completes arguments."""

    def __init__(self, agent: SmcpAgent, server: Server[Any], resources: OfficeResources) -> None:
        self._agent = agent
        self._resources = resources
        self._named: dict[str, _Place] = {}
        server.add_request_handler("prompts/list", types.PaginatedRequestParams, self._list)
        server.add_request_handler("prompts/get", types.GetPromptRequestParams, self._get)
        server.add_request_handler("completion/complete", types.CompleteRequestParams, self._complete)

    async def _list(self, context: Context, _: types.PaginatedRequestParams) -> JsonObject:
        listed = await self._listed(context)
        return await requested_page("prompts/list", context, types.ListPromptsResult, "prompts", listed)

    async def _listed(self, context: Context) -> list[dict[str, Any]]:
        found = await ask_each(self._resources.computers(context), "prompts", _all_of(self._agent.iter_prompts))
        there: dict[_Place, JsonObject] = {
            (computer, each.get("serverId"), each["name"]): each
            for computer, listed in found.items()
            for each in listed
        }
        silent = set(self._agent.computers()) - found.keys()
        kept = ((name, at) for name, at in self._named.items() if at[0] in silent and len(name) <= LONGEST)
        self._named = dict(islice(kept, MAX_RETIRED_NAMES)) | {
            name: at for name, at in self._named.items() if at in there
        }
        named: dict[str, dict[str, Any]] = {}
        qualifying = qualifiers(self._agent.computers())
        for at, each in there.items():
            own = () if looks_foreign(at[2], at[0], qualifying) else (at[2],)
            for name in (*own, "__".join(filter(None, at))):
                if self._named.setdefault(name, at) == at:
                    named[name] = {**each, "name": name}
                    break
        return list(named.values())

    async def _get(self, context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        computer, server, own = await self._find(context, params.name)
        try:
            found = await self._agent.get_prompt(computer, own, params.arguments, server=server)
        except SmcpError as error:
            raise mcp_error(error) from None
        whole = {**found, "_meta": found.get("meta")}
        return await _valid(types.GetPromptResult, "messages", whole, f"the prompt {params.name!r}")

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        argument, value = params.argument.name, params.argument.value
        chosen = params.context.arguments if params.context is not None else None
        if isinstance(params.ref, types.ResourceTemplateReference):
            found = await self._resources.complete(context, params.ref.uri, argument, value, chosen)
        else:
            computer, server, own = await self._find(context, params.ref.name)
            try:
                found = await self._agent.complete_prompt(computer, own, argument, value, chosen=chosen, server=server)
            except SmcpError as error:
                raise mcp_error(error) from None
        return types.CompleteResult.model_validate({"completion": found})

    async def _find(self, context: Context, name: str) -> _Place:
        if name not in self._named:
            await self._listed(context)
        found = self._named.get(name)
        if found is None or not self._resources.may_ask(context, found[0]):
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {name!r} that you may use")
        return found
