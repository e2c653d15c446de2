"""Agents of our SDK, a few to a process, that call the tool of their office's Computer."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvloop

from smcp_agent import SmcpAgent, may_have_run
from smcp_agent.errors import ErrorCode, SmcpError
from tests.e2e.restarts.caller import Answer, Ask, Caller, Pace, journal
from tests.e2e.restarts.orders import Work, config, follow
from tests.e2e.restarts.together import together


@asynccontextmanager
async def agents(told: dict[str, Any]) -> AsyncIterator[Work]:
    async with AsyncExitStack() as stack:
        book = stack.enter_context(journal(told["journal"]))
        callers = []
        for member in told["members"]:
            agent = SmcpAgent(member["urls"], office=member["office"], name=member["name"])
            await stack.enter_async_context(agent)
            ask = ask_of(agent, member["computer"], told["timeout_s"])
            callers.append(Caller("sdk", member["office"], Pace(**told["pace"]), book, ask))
        yield together([caller.run for caller in callers])


def ask_of(agent: SmcpAgent, computer: str, timeout: int) -> Ask:
    """Calls tool `work` of the Computer; `timeout` in seconds."""

    async def ask(req_id: str, seconds: float) -> Answer:
        params = {"id": req_id, "seconds": seconds}
        try:
            result = await agent.call_tool(computer, "work", params, timeout=timeout, req_id=req_id)
        except SmcpError as error:
            return Answer(None, str(error), error.code, may_have_run(error))
        if result.is_error:
            return Answer(None, result.text, ErrorCode.TIMED_OUT if result.timed_out else None)
        return Answer(result.text)

    return ask


if __name__ == "__main__":
    uvloop.run(follow(agents(config())))
