"""The Agent of the published package `a2c-smcp`, unchanged, as its documentation writes one.

Runs in an environment of its own (`bench.published_env`):

    python published_agent.py URL OFFICE COMPUTER TOOL PARAMS [TOOL PARAMS …]

It calls one tool after another; its last line says as a JSON array what each gave, and on which connection. (The
package logs to standard output.)
"""

import asyncio
import json
import sys
from typing import Any

from a2c_smcp.agent import AsyncSMCPAgentClient, DefaultAgentAuthProvider

NAMESPACE = "/smcp"


async def main(url: str, office: str, computer: str, *calls: str) -> list[dict[str, Any]]:
    client = AsyncSMCPAgentClient(DefaultAgentAuthProvider(agent_id="published", office_id=office), reconnection=False)
    await client.connect_to_server(url)
    try:
        await client.join_office(office, "published", namespace=NAMESPACE)  # it does not wait for an answer
        gave = []
        for tool, params in zip(calls[::2], calls[1::2], strict=True):
            result = await client.emit_tool_call(computer, tool, json.loads(params), timeout=120)
            texts = [block.text for block in result.content]
            gave.append(
                {
                    "error": bool(result.isError),
                    "text": "".join(texts)[:1000],
                    "length": sum(map(len, texts)),
                    "sid": client.get_sid(NAMESPACE),
                    "transport": client.transport(),
                }
            )
        return gave
    finally:
        await client.disconnect()


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asyncio.run(main(*sys.argv[1:]))) + "\n")
