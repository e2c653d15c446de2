"""The handlers of `client:prompts/*`, in the manner of the resources chapter, and the completion of prompts' arguments.

A prompt is asked for now, and nothing of it is kept. Which server has it is looked up in the lists of all, as far as
`serverId` does not say it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.access import Access
from smcp_computer.mcp.errors import not_supported
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.resources import Json, Prompts
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.reply_limits import Budget
from smcp_computer.resources.index import page_of, read_cursor, write_cursor
from smcp_computer.resources.routing import Directory
from smcp_computer.tools import History
from smcp_proto.errors import Malformed, NotFound
from smcp_proto.schemas.base import JsonRpcRequest
from smcp_proto.schemas.resources import CompleteReq, GetPromptReq, ListPromptsReq, RequestEnvelope
from smcp_proto.sorting import server_order
from smcp_proto.tool_results import with_meta

LEFT_OUT = "a2c_skipped_servers"
"""In `meta` of a list over several servers: whose items are missing from this page on. Not `a2c_skipped`: those are
Computers that a list over the whole office lacks, and both may stand in one page."""


@dataclass(eq=False)
class PromptHandlers:
    """Each public method is a handler."""

    supervisors: Mapping[str, Supervisor]
    directory: Directory
    access: Access
    events: ServerEvents
    history: History
    reply: Callable[[RequestEnvelope, JsonRpcRequest, Awaitable[tuple[str | None, Json]]], Awaitable[RawJson]]
    """Puts a server and its result, or its refusal, into the envelope."""

    async def list(self, request: ListPromptsReq, call: Call) -> RawJson:
        return await self.reply(request, request.payload, self._page(request, call))

    async def get(self, request: GetPromptReq, call: Call) -> RawJson:
        asked = request.payload.params
        return await self.reply(request, request.payload, self._asked(request, call, asked.name, Prompts.get))

    async def complete(self, request: CompleteReq, call: Call) -> RawJson:
        """Values for an argument of a prompt."""
        name = request.payload.params.ref.name or ""
        return await self.reply(request, request.payload, self._asked(request, call, name, Prompts.complete))

    async def _page(self, request: ListPromptsReq, call: Call) -> tuple[str | None, Json]:
        params, server = request.payload.params, request.serverId
        cursor = params.cursor if params is not None else None
        after = None if cursor is None else read_cursor(cursor, "prompts", server)
        lists, missing = await self._lists(server, call, Budget(call))
        page = page_of("prompts", lists, after)
        for of, name in page.left_out:
            self.events.warn(of, f"{self.events.shown(name)!r} is too large to be listed; it is left out")
        result: dict[str, Any] = {"prompts": page.items}
        if page.next is not None:
            result["nextCursor"] = write_cursor(page.next)
        if left_out := [name for name in missing if after is None or name >= after.server]:
            result["meta"] = {LEFT_OUT: left_out}
        return server, result

    async def _asked(
        self, request: GetPromptReq | CompleteReq, call: Call, name: str, ask: Callable[..., Awaitable[Json]]
    ) -> tuple[str, Json]:
        budget, server = Budget(call), request.serverId
        if server is None or isinstance(request, GetPromptReq):
            lists, _ = await self._lists(server, call, budget)
            having = {of: each for of, prompts in lists.items() for each in prompts if each["name"] == name}
            if server is None:
                if not having:
                    raise NotFound(f"no MCP server of this Computer has the prompt {name!r:.200}")
                server = server_order(list(having), self.history.servers)[0]
            if isinstance(request, GetPromptReq) and server in having:
                _check_arguments(having[server], request.payload.params.arguments or {})
        params = request.payload.params.model_dump(mode="json", by_alias=True, exclude_unset=True)
        prompts = self._prompts(self.directory.without(self.access.hidden(call.caller)), server)
        return server, with_meta(await ask(prompts, params, timeout=budget.left))

    async def _lists(
        self, server: str | None, call: Call, budget: Budget
    ) -> tuple[dict[str, Sequence[Json]], Sequence[str]]:
        """The prompts of one server, or of all that list theirs; and the names of those that do not run or fail."""
        directory = self.directory.without(hidden := self.access.hidden(call.caller))

        async def listed(of: str, timeout: float) -> Sequence[Json]:
            found = await self._prompts(directory, of).list_all(timeout=timeout)
            self.events.warn(of, *found.problems)
            return found.items

        if server is not None:
            return {server: await listed(server, budget.left)}, ()
        usable = {name: each for name, each in sorted(self.supervisors.items()) if name not in hidden}
        having = [name for name, each in usable.items() if each.prompts is not None]
        found = await directory.of_all(listed, having, budget.left)
        return found, [
            name for name, each in usable.items() if name not in found and (name in having or not each.ready)
        ]

    @staticmethod
    def _prompts(directory: Directory, server: str) -> Prompts:
        """Raises SmcpError: the server is not for this caller, does not run, or has no prompts."""
        prompts = directory.ready(server).prompts
        if prompts is None:
            raise not_supported(f"MCP server {server!r} has no prompts")
        return prompts


def _check_arguments(prompt: Json, given: Mapping[str, str]) -> None:
    """Raises Malformed: an argument is missing that the prompt requires, or is none of those that it declares."""
    declared = prompt.get("arguments")
    if not isinstance(declared, list):
        return
    known = {each.get("name"): each.get("required") is True for each in declared if isinstance(each, dict)}
    missing = (name for name, required in known.items() if required and name not in given)
    for names, reason in ((missing, "is missing"), (given.keys() - known.keys(), "is no argument of this prompt")):
        for name in names:
            field = f"payload.params.arguments.{name}"[:200]
            raise Malformed(f"argument {str(name)[:150]!r}: {reason}", details={"field": field, "reason": reason})
