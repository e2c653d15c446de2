"""The MCP service's settings, read once at its start."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from smcp_agent.connecting.link import connection_problems
from smcp_agent.connecting.options import Token, token_from
from smcp_agent.mcp.tools import MAX_TOOLS
from smcp_auth.settings import AuthSettings, QuotaSettings, check_auth
from smcp_proto.member_names import Name
from smcp_proto.printable import is_url, without_login
from smcp_service.settings import MIB, BindHost, Port, Seconds, SettingsError, listed


def _origin(url: str) -> str:
    parts = urlsplit(url)
    if not is_url(url) or parts.path.strip("/") or parts.query:
        raise ValueError(f"{without_login(url)!r} is not a URL without a path, such as https://mcp.example.com")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _peers(value: str) -> str:
    return ",".join(map(_origin, listed(value)))


class McpSettings(AuthSettings, QuotaSettings):
    """Settings of `smcp-mcp`: each field is a variable with the prefix `SMCP_`."""

    url: str = Field(default="http://127.0.0.1:8000", description="where gateways listen; several comma-separated")
    token: SecretStr | None = Field(default=None, description="the key or token of this service for the gateway")
    token_file: Path | None = Field(
        default=None, description="or a file that has it, read before each connection: for tokens that are renewed"
    )
    mcp_host: BindHost = Field(default="127.0.0.1", description="where MCP clients connect")
    mcp_port: Port = Field(default=8001, description="port for MCP clients, at /mcp/{office}; 0 takes any free one")
    mcp_public_url: Annotated[str, AfterValidator(_origin)] | None = Field(
        default=None,
        description="public URL, without a path. Needed for OAuth: clients find the issuer there, and `aud` may "
        "be the URL of one office",
    )
    mcp_name: Name = Field(default="smcp-mcp", description="the Agent's name in offices; the same at all replicas")
    mcp_idle_s: Annotated[Seconds, Field(gt=0, le=86400)] = Field(
        default=300.0, description="an office without a request or open stream for so long is left"
    )
    mcp_peers: Annotated[str, AfterValidator(_peers)] = Field(
        default="",
        description="where the other replicas listen, comma-separated; each address of a host name is one replica",
    )
    mcp_max_tools: Annotated[int, Field(ge=1)] = Field(
        default=MAX_TOOLS, description="a client that may use more tools lists a search in their place"
    )
    mcp_always_list: str = Field(
        default="", description="patterns of tools that are listed beside the search, comma-separated: git_*,red__echo"
    )

    @property
    def max_request(self) -> int:
        """Bytes of the largest request: half of what gateways take, as the MCP SDK reads it in one step (ADR 0044)."""
        return max(self.max_payload // 8, min(self.max_payload, MIB))

    @property
    def gateway_token(self) -> Token | None:
        if self.token is not None:
            return self.token.get_secret_value()
        return None if self.token_file is None else token_from(self.token_file, "SMCP_TOKEN_FILE:")


def check_access(settings: McpSettings) -> None:
    """Raises SettingsError: the settings let anybody in, contradict each other, or name no gateway."""
    check_auth(settings, "SMCP_MCP_HOST", settings.mcp_host)
    problems = connection_problems(listed(settings.url) or [""], settings.token, ("SMCP_URL", "SMCP_TOKEN"))
    if settings.token is not None and settings.token_file is not None:
        problems.append("SMCP_TOKEN and SMCP_TOKEN_FILE: set only one")
    if problems:
        raise SettingsError(*problems)
    if settings.auth_with_tokens and settings.mcp_public_url and not is_url(settings.auth_issuer):
        raise SettingsError(
            "SMCP_AUTH_ISSUER: must be a URL when SMCP_MCP_PUBLIC_URL is set: clients get their tokens there"
        )
