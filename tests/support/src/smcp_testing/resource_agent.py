"""An Agent that asks a Computer of a `computer_office` world for resources, as a gateway passes it on."""

import json
from typing import Any

from smcp_bus import subjects
from smcp_bus.headers import ERROR
from smcp_testing.computer_office import NAME, OFFICE, World


class ResourceAgent:
    """Args:
    name: what it says of itself; None: nothing.
    """

    def __init__(self, here: World, name: str | None = "alice") -> None:
        self.here = here
        self.name = name

    async def ask(
        self, method: str, *, server: str | None = None, timeout: float = 25.0, request_id: int | str = 7, **params: Any
    ) -> dict[str, Any]:
        """The whole reply to an MCP request: an envelope, or a flat error."""
        payload = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        envelope: dict[str, Any] = {"roomId": OFFICE, "computerId": NAME, "payload": payload}
        if self.name is not None:
            envelope["agent"] = self.name
        if server is not None:
            envelope["serverId"] = server
        subject = subjects.client(OFFICE, NAME, method.replace("/", "_"))
        reply = await self.here.agent.request(subject, json.dumps(envelope).encode(), timeout=timeout)
        answer: dict[str, Any] = json.loads(reply.body)
        assert reply.headers.get(ERROR) == (str(answer["code"]) if "code" in answer else None)
        if "code" not in answer:
            assert (answer["roomId"], answer["computerId"]) == (OFFICE, NAME)
            assert (answer["payload"]["jsonrpc"], answer["payload"]["id"]) == ("2.0", request_id)
        return answer

    async def result(self, method: str, **asked: Any) -> Any:
        """The result of a request that is answered well."""
        answer = await self.ask(method, **asked)
        assert "result" in answer.get("payload", {}), answer
        return answer["payload"]["result"]

    async def error(self, method: str, **asked: Any) -> dict[str, Any]:
        """The server's JSON-RPC error."""
        answer = await self.ask(method, **asked)
        assert "error" in answer.get("payload", {}), answer
        error: dict[str, Any] = answer["payload"]["error"]
        return error

    async def flat(self, method: str, **asked: Any) -> tuple[int, str | None]:
        """The code and the `smcp_code` of a flat error."""
        answer = await self.ask(method, **asked)
        assert "code" in answer, answer
        return answer["code"], answer["details"].get("smcp_code")

    async def uris(self, **asked: Any) -> list[str]:
        """All pages of `resources/list`."""
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self.result("resources/list", **asked, **cursor)
            found += [resource["uri"] for resource in page["resources"]]
            if "nextCursor" not in page:
                return found
            cursor = {"cursor": page["nextCursor"]}
