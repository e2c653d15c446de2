"""The prompts of all Computers of an office under one list of names, and the completion of arguments.

A prompt keeps its name where no other had it first; else it is `<computer>__<server>__<its name>`. Below is
`SmcpAgent`, above `mcp.bridge`.
"""

from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from smcp_agent.client import SmcpAgent
from smcp_agent.errors import SmcpError
from smcp_agent.mcp.resources import Context, OfficeResources, fitting, mcp_error, of_all
from smcp_agent.prompts import Prompt

_Place = tuple[str, str | None, str]
"""Computer, MCP server and own name of a prompt."""


class OfficePrompts:
    """The part of the office's MCP server that lists and fills in prompts, and completes arguments."""

    def __init__(self, agent: SmcpAgent, server: Server[Any], resources: OfficeResources) -> None:
        self._agent = agent
        self._resources = resources
        self._named: dict[str, _Place] = {}
        server.add_request_handler("prompts/list", types.PaginatedRequestParams, self._list)
        server.add_request_handler("prompts/get", types.GetPromptRequestParams, self._get)
        server.add_request_handler("completion/complete", types.CompleteRequestParams, self._complete)

    async def _list(self, context: Context, _: types.PaginatedRequestParams) -> types.ListPromptsResult:
        listed = await self._listed(context)
        return fitting("prompts/list", context, types.ListPromptsResult, "prompts", listed)

    async def _listed(self, context: Context) -> list[dict[str, Any]]:
        async def of(computer: str) -> list[Prompt]:
            return [each async for each in self._agent.iter_prompts(computer)]

        found = await of_all(self._resources.computers(context), "prompts", of)
        there = {_place(computer, each): each for computer, prompts in found.items() for each in prompts}
        silent = set(self._agent.computers()) - found.keys()
        self._named = {name: at for name, at in self._named.items() if at in there or at[0] in silent}
        listed: dict[str, dict[str, Any]] = {}
        for at, each in there.items():
            for name in (at[2], "__".join(filter(None, at))):
                if self._named.setdefault(name, at) == at:
                    listed[name] = {**each, "name": name}
                    break
        return list(listed.values())

    async def _get(self, context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        computer, server, own = await self._find(context, params.name)
        try:
            found = await self._agent.get_prompt(computer, own, params.arguments, server=server)
        except SmcpError as error:
            raise mcp_error(error) from None
        try:
            return types.GetPromptResult.model_validate({**found, "_meta": found.get("meta")})
        except ValidationError:
            raise MCPError(types.INTERNAL_ERROR, f"the prompt {params.name!r} is not valid in MCP") from None

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
        if name not in self._named:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {name!r} in the office now")
        self._resources.check(context, self._named[name][0])
        return self._named[name]


def _place(computer: str, prompt: Prompt) -> _Place:
    return computer, prompt.get("serverId"), prompt["name"]
