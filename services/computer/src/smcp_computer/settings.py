"""What a Computer can be told, read once at its start."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, SecretStr

from smcp_computer.confirmation import Confirm
from smcp_proto.names import Name
from smcp_service.settings import MIB, Seconds, ServiceSettings


def _folded(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


class ComputerSettings(ServiceSettings):
    """Settings of `smcp-computer`: each field is a variable with the prefix `SMCP_`."""

    known_variables: ClassVar[tuple[str, ...]] = ("SMCP_INPUT_*",)

    config: Path = Field(description="the JSON file with the MCP servers and inputs")
    office: Name = Field(description="the office to join")
    name: Name = Field(description="this Computer's name, unique in its office")
    gateway_url: str | None = Field(
        default=None,
        description="where gateways listen, like https://host:port; several with commas. In the place of NATS",
    )
    token: SecretStr | None = Field(default=None, description="the key or token for the gateway")
    token_file: Path | None = Field(
        default=None, description="or a file that has it, read before each connection: for tokens that are renewed"
    )
    confirm: Annotated[Confirm | None, BeforeValidator(_folded)] = Field(
        default=None,
        description="ask, allow or deny tools without auto_apply; unset: ask at a terminal, allow where there is none",
    )
    keep_results_s: Annotated[Seconds, Field(ge=0, le=3600)] = Field(
        default=300.0, description="how long the result of a call is kept for the same call sent again"
    )
    keep_results_bytes: Annotated[int, Field(ge=0)] = Field(
        default=64 * MIB, description="how many bytes of results are kept at most"
    )
    trace_content: bool = Field(
        default=False, description="record arguments and results of tools in traces; they may hold secrets"
    )
    pass_network_env: bool = Field(
        default=False,
        description="give MCP servers this host's variables for proxies, certificates and package indexes, too",
    )
    start_s: Annotated[Seconds, Field(gt=0, le=600)] = Field(
        default=30.0, description="how long the start of an MCP server may take"
    )
    finder_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        default=64 * MIB,
        description="how many bytes of documents' metadata are kept at most; the rest is read where it is shown",
    )
    finder_index_bytes: Annotated[int, Field(ge=0)] = Field(
        default=128 * MIB,
        description="how many bytes of what documents are searched and ordered by are kept at most; "
        "more documents are searched, ordered and shown as listed",
    )
    finder_wait_s: Annotated[Seconds, Field(gt=0, le=25)] = Field(
        default=5.0,
        description="how long documents that are not read yet are waited for; then they are shown as listed",
    )
    gather_s: Annotated[Seconds, Field(ge=0, le=10)] = Field(
        default=0.1, description="changes (of tools, windows, documents) that come within so long are told as one"
    )
    read_s: Annotated[Seconds, Field(gt=0, le=25)] = Field(
        default=5.0, description="how long MCP servers may take to give their windows; the others are shown without"
    )
