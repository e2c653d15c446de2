"""Settings of a Computer, and the checks of how it connects (NATS or gateways)."""

import shlex
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from smcp_computer.config.server_settings import Confirm
from smcp_computer.control_client import seat_directory
from smcp_proto.member_names import Name
from smcp_service.settings import MIB, Seconds, ServiceSettings, SettingsError, folded


def _command_line(text: str | None) -> str | None:
    if text is not None and (not (words := shlex.split(text)) or shutil.which(words[0]) is None):
        raise ValueError("names no program that can be run")
    return text


def _confirm(value: object) -> object:
    word = folded(value)
    if isinstance(word, str) and word not in (*Confirm, "agent"):
        raise ValueError("must be 'ask', 'allow', 'deny' or 'agent'")  # pydantic would say one line for each type
    return word


class ComputerSettings(ServiceSettings):
    """Settings of `smcp-computer`: each field is a variable with the prefix `SMCP_`."""

    config: Path = Field(description="the JSON file with the MCP servers and inputs")
    office: Name = Field(description="the office to join")
    name: Name = Field(description="this Computer's name, unique in its office")
    gateway_url: str | None = Field(
        default=None,
        description="where gateways listen, like https://host:port; several with commas; instead of NATS",
    )
    token: SecretStr | None = Field(default=None, description="the key or token for the gateway")
    token_file: Path | None = Field(
        default=None, description="or a file that has it, read before each connection: for tokens that are renewed"
    )
    confirm: Annotated[Confirm | Literal["agent"] | None, BeforeValidator(_confirm)] = Field(
        default=None,
        description="ask, allow or deny tools without auto_apply, or have the Agent's user asked (agent); "
        "unset: ask at a terminal, allow where there is none",
    )
    elicit: Annotated[Literal["agent", "terminal"], BeforeValidator(folded)] = Field(
        default="agent",
        description="who answers MCP elicitation: the Agent's user, or this Computer's at its terminal",
    )
    question_s: Annotated[Seconds, Field(gt=0, le=3600)] = Field(
        default=300.0, description="how long an elicitation to the Agent waits for its answer"
    )
    confirm_command: Annotated[str | None, AfterValidator(_command_line)] = Field(
        default=None, description="a program with its arguments that is asked whether a tool may run, and not the user"
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
    strict: bool = Field(
        default=False, description="hide a server's tools while the configuration names a tool it does not have"
    )
    vrl_s: Annotated[Seconds, Field(gt=0, le=60)] = Field(
        default=2.0, description="how long a server's script (vrl) may take for one result"
    )
    start_s: Annotated[Seconds, Field(gt=0, le=600)] = Field(
        default=30.0, description="how long the start of an MCP server may take"
    )
    wait_s: Annotated[Seconds, Field(ge=0, le=600)] = Field(
        default=3.0, description="how long a call waits for an MCP server that is being started again; 0: not at all"
    )
    silence_s: Annotated[Seconds, Field(ge=1, le=3600)] = Field(
        default=30.0, description="restart an MCP server after this long without a message, unless it runs a call"
    )
    finder_cache_bytes: Annotated[int, Field(ge=0)] = Field(
        default=64 * MIB,
        description="how many bytes of documents' metadata are kept at most; "
        "documents above it are searched, ordered and shown as listed",
    )
    gather_s: Annotated[Seconds, Field(ge=0, le=10)] = Field(
        default=0.1, description="changes (of tools, windows, documents) that come within this time are sent as one"
    )
    pins: Annotated[Literal["enforce", "warn"], BeforeValidator(folded)] = Field(
        default="enforce",
        description="what becomes of a tool that is not as it is pinned: not called, or only warned of",
    )
    pins_file: Path | None = Field(
        default=None,
        description="the file of `smcp-computer pin`; default: beside the configuration (computer.pins.json)",
    )
    state_dir: Path | None = Field(
        default=None,
        description="where its control socket, its MCP servers' logs and its secrets are; "
        "default: a directory of its own below XDG_STATE_HOME (~/.local/state)",
    )
    secret_key_file: Path | None = Field(
        default=None, description="file with the key of its secrets; default: the system's keyring, else a file beside"
    )
    restart: bool = Field(
        default=False,
        description="set it if a supervisor restarts the Computer at once: "
        "its seat is kept for SMCP_MOVE_S, and calls wait",
    )
    read_s: Annotated[Seconds, Field(gt=0, le=25)] = Field(
        default=4.5,
        description="how long MCP servers may take to give windows and documents; then what is known is shown",
    )


def state_path(settings: ComputerSettings) -> Path:
    """The directory of this Computer's control socket, logs and secrets, which may not exist."""
    if settings.state_dir is not None:
        return settings.state_dir
    return seat_directory(settings.office, settings.name)


def pins_path(settings: ComputerSettings) -> Path:
    """The file with the pinned tools, which may not exist."""
    return settings.pins_file or settings.config.with_suffix(".pins.json")


def state_directory(settings: ComputerSettings) -> Path:
    """`state_path`, made so that its user alone can read it. Raises SettingsError: it cannot be made."""
    path = state_path(settings)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"SMCP_STATE_DIR: {path} cannot be made: {error.strerror}") from None
    return path


FILE_OPTION: Final = "--token-file (SMCP_TOKEN_FILE):"
TokenSource = str | Callable[[], Awaitable[str]]
"""See `smcp_agent.connecting.options.Token`."""


def check_connection(settings: ComputerSettings, *, asked_for_token: bool = False) -> None:
    """Raises SettingsError: the settings do not name one way to connect, or have a token that cannot be sent.
    `asked_for_token`: the command line has a token, and not just an environment that other commands share."""
    if settings.gateway_url is None:
        if asked_for_token:
            raise SettingsError("--token: is for a gateway: say --gateway (SMCP_GATEWAY_URL), too")
        return
    from smcp_agent.connecting.addresses import checked_url  # noqa: PLC0415 -- Socket.IO takes half a second to load
    from smcp_agent.connecting.options import check_token  # noqa: PLC0415
    from smcp_agent.errors import Malformed  # noqa: PLC0415

    problems = [
        f"SMCP_{name.upper()}: is for NATS, and --gateway (SMCP_GATEWAY_URL) is given: a Computer is connected one way"
        for name in ("nats_url", "nats_creds", "nats_ca")
        if name in settings.model_fields_set and getattr(settings, name) is not None
    ]
    if settings.token is not None and settings.token_file is not None:
        problems.append("--token (SMCP_TOKEN) and --token-file (SMCP_TOKEN_FILE): set only one")
    checks: list[tuple[str, Callable[[str], object], str]] = [
        ("--gateway (SMCP_GATEWAY_URL)", checked_url, url.strip()) for url in settings.gateway_url.split(",")
    ]
    if settings.token is not None:
        checks.append(("--token (SMCP_TOKEN)", check_token, settings.token.get_secret_value()))
    for option, check, value in checks:
        try:
            check(value)
        except Malformed as error:
            problems.append(f"{option}: {error.message.partition(': ')[2]}")
    if problems:
        raise SettingsError(*problems)


def token_of(settings: ComputerSettings) -> TokenSource | None:
    """The token for the gateway, or what reads it from its file before each connection."""
    from smcp_agent.connecting.options import token_from  # noqa: PLC0415 -- as above

    if settings.token is not None:
        return settings.token.get_secret_value()
    return None if settings.token_file is None else token_from(settings.token_file, FILE_OPTION)


def token_problem(settings: ComputerSettings) -> str | None:
    """Why there is no token in its file now, which does not keep a Computer from running; None: there is one."""
    from smcp_agent.connecting.options import read_token  # noqa: PLC0415 -- as above
    from smcp_agent.errors import TokenUnavailable  # noqa: PLC0415

    if settings.gateway_url is None or settings.token_file is None:
        return None
    try:
        read_token(settings.token_file, FILE_OPTION)
    except TokenUnavailable as error:
        return error.message
    return None
