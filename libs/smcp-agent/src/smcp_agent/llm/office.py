"""What a model is shown of an office's tools, and its calls of what it was shown."""

from typing import Any

from smcp_agent.llm import calls as llm_calls
from smcp_agent.llm.tools import NamedTool, ToolBook, name_tools
from smcp_agent.tool_cache import ToolCache


class LlmOffice:
    """Names the tools of all Computers for a model, and knows what a name meant when the model was given it.

    Args:
        tools: of the Computers in the office.
        call: runs a tool of a Computer.
    """

    def __init__(self, tools: ToolCache, call: llm_calls.CallTool) -> None:
        self._tools = tools
        self._call = call
        self._book = ToolBook()

    async def tools(self) -> list[NamedTool]:
        """The tools of all Computers under names for a model; a Computer whose tools were never fetched is left out."""
        named = name_tools(await self._tools.all())
        self._book.give(named)
        return named

    async def run_openai(self, tool_call: Any, timeout: float) -> dict[str, Any]:
        """See `llm_calls.run_openai`."""
        await self._learn_names()
        return await llm_calls.run_openai(self._book, self._call, tool_call, timeout)

    async def run_anthropic(self, block: Any, timeout: float) -> dict[str, Any]:
        """See `llm_calls.run_anthropic`."""
        await self._learn_names()
        return await llm_calls.run_anthropic(self._book, self._call, block, timeout)

    async def _learn_names(self) -> None:
        """A model may call tools that another run of the application showed it."""
        if self._book.empty:
            await self.tools()
