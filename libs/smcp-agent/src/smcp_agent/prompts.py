"""The prompts of Computers: messages that their MCP servers have ready for a user to choose."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, NotRequired, TypedDict, cast

from smcp_agent.resources import Completion, completed, list_page, pages
from smcp_agent.rpc import RpcClient, mapping_of, reply_of
from smcp_proto.schemas import GetPromptReq, GetPromptResult, ListPromptsReq
from smcp_proto.schemas import Prompt as WirePrompt


class PromptArgument(TypedDict):
    """An argument of a prompt; its value is a text."""

    name: str
    title: NotRequired[str]
    description: NotRequired[str]
    required: NotRequired[bool]


class Prompt(TypedDict):
    """A prompt as its MCP server lists it; what else the server says of it is there, too."""

    name: str
    title: NotRequired[str]
    description: NotRequired[str]
    arguments: NotRequired[list[PromptArgument]]
    serverId: NotRequired[str]
    """Its MCP server: several servers of a Computer may have prompts of one name."""


class PromptList(TypedDict):
    """One page of prompts."""

    prompts: list[Prompt]
    nextCursor: NotRequired[str]
    computer: NotRequired[str]
    meta: NotRequired[dict[str, Any]]
    """`a2c_skipped_servers` names the MCP servers whose prompts could not be listed."""


class PromptMessages(TypedDict):
    """A prompt with its arguments filled in. A message has a `role` (user or assistant) and MCP's `content`."""

    messages: list[dict[str, Any]]
    description: NotRequired[str]
    meta: NotRequired[dict[str, Any]]


class PromptMethods:
    """What `SmcpAgent` can do with prompts."""

    _rpc: RpcClient

    async def list_prompts(self, computer: str, *, server: str | None = None, cursor: str | None = None) -> PromptList:
        """One page of prompts, asked for now. `server`: only those of this MCP server. Raises SmcpError: as
        `read_resource`."""
        page = await list_page(self._rpc, ListPromptsReq, "prompts", WirePrompt, computer, server, cursor)
        return cast("PromptList", page)

    async def iter_prompts(self, computer: str, *, server: str | None = None) -> AsyncIterator[Prompt]:
        """All prompts, one page after the other, for `async for`. As `list_prompts`."""
        async for page in pages(self.list_prompts, computer, server):
            for each in page["prompts"]:
                yield each

    async def get_prompt(
        self, computer: str, name: str, arguments: Mapping[str, str] | None = None, *, server: str | None = None
    ) -> PromptMessages:
        """The messages of a prompt, asked for now.

        Args:
            arguments: texts, by the names that the prompt lists.
            server: its MCP server (`serverId` where it is listed); None: the Computer finds one that has it.

        Raises:
            McpError: the MCP server refused it; an argument is missing, say.
            SmcpError: as `read_resource`.
        """
        params: dict[str, Any] = {"name": name}
        if given := mapping_of("arguments", arguments):
            params["arguments"] = given
        answered = await self._rpc.ask_mcp("client:prompts/get", GetPromptReq, params, computer=computer, server=server)
        reply_of(GetPromptResult, answered.result, f"the prompt {name!r} that {answered.sender} sent")
        return cast("PromptMessages", answered.result)

    async def complete_prompt(
        self,
        computer: str,
        name: str,
        argument: str,
        value: str = "",
        *,
        chosen: Mapping[str, str] | None = None,
        server: str | None = None,
    ) -> Completion:
        """What an argument of a prompt may be. As `complete`, with the name of a prompt in place of a template."""
        reference = {"type": "ref/prompt", "name": name}
        return await completed(self._rpc, computer, reference, argument, value, chosen, server)
