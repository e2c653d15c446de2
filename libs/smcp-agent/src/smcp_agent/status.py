"""How the MCP servers of a Computer are, and why one has no tools."""

from smcp_agent.rpc import RpcClient
from smcp_proto.schemas import GetStatusReq, GetStatusRet


class StatusMethods:
    """What `SmcpAgent` can do to find out why a Computer is not as expected."""

    _rpc: RpcClient

    async def get_status(self, computer: str) -> GetStatusRet:
        """The states of a Computer's MCP servers, asked of it now.

        Raises SmcpError: as `call_tool`. Not every Computer knows the question: those of the published package do not.
        """
        request = self._rpc.question(GetStatusReq, computer)
        return await self._rpc.ask("client:get_status", request, GetStatusRet, "servers", computer)

    async def why_no_tools(self, computer: str) -> str:
        """Why a Computer lists no tools, for people; empty where it lists some. Raises SmcpError: as `get_status`."""
        return why_no_tools(await self.get_status(computer))


def why_no_tools(status: GetStatusRet) -> str:
    """One sentence for each MCP server; empty where tools are listed."""
    if any(each.tools for each in status.servers):
        return ""
    sentences = [
        f"{each.name} is {each.state}{f': {each.reason}' if each.reason else ''}"
        if each.state != "ready"
        else f"{each.name} is ready, and lists none"
        for each in status.servers
    ] or ["it has no MCP servers"]
    if status.config_problem:
        sentences.append(f"its configuration file is not in use: {status.config_problem}")
    return "; ".join(sentences)
