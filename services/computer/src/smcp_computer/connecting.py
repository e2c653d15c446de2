"""How a Computer is to be connected: over NATS, or over Socket.IO by a gateway. What the settings say of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from smcp_computer.settings import ComputerSettings
from smcp_service.settings import SettingsError

TokenSource = str | Callable[[], Awaitable[str]]
"""See `smcp_agent.connecting.tokens.Token`."""


def check_connection(settings: ComputerSettings, *, asked_for_token: bool = False) -> None:
    """Check that the settings name one way.

    Args:
        asked_for_token: whether a token was given for this very command, and not just in an environment that other
            commands share.

    Raises:
        SettingsError: they name NATS and a gateway, two tokens, one that cannot be sent, or one for nobody.
    """
    if settings.gateway_url is None:
        if asked_for_token:
            raise SettingsError("--token: is for a gateway: say --gateway (SMCP_GATEWAY_URL), too")
        return
    problems = [
        f"SMCP_{name.upper()}: is for NATS, and --gateway (SMCP_GATEWAY_URL) is given: a Computer is connected one way"
        for name in ("nats_url", "nats_creds", "nats_ca")
        if name in settings.model_fields_set and getattr(settings, name) is not None
    ]
    if settings.token is not None and settings.token_file is not None:
        problems.append("SMCP_TOKEN_FILE: is given beside SMCP_TOKEN: there can be one token")
    problems += _unusable(settings.gateway_url, settings.token.get_secret_value() if settings.token else None)
    if problems:
        raise SettingsError(*problems)


def _unusable(urls: str, token: str | None) -> list[str]:
    from smcp_agent.connecting.addresses import checked_url  # noqa: PLC0415 -- Socket.IO takes half a second to load
    from smcp_agent.connecting.tokens import check_token  # noqa: PLC0415
    from smcp_agent.errors import Malformed  # noqa: PLC0415

    problems = []
    for url in urls.split(","):
        try:
            checked_url(url.strip())
        except Malformed as error:
            problems.append(f"SMCP_GATEWAY_URL: {error.message.removeprefix('url: ')}")
    if token is not None:
        try:
            check_token(token)
        except Malformed as error:
            problems.append(f"SMCP_TOKEN: {error.message.removeprefix('token: ')}")
    return problems


def token_of(settings: ComputerSettings) -> TokenSource | None:
    """The token for the gateway, or what reads it from its file before each connection; None: there is none."""
    if settings.token is not None:
        return settings.token.get_secret_value()
    if settings.token_file is None:
        return None
    path = settings.token_file

    async def read() -> str:
        return await asyncio.to_thread(_read_token, path)

    return read


def token_doubt(settings: ComputerSettings) -> str | None:
    """Why there is no token in its file now, which does not keep a Computer from running; None: there is one."""
    from smcp_agent.errors import TokenUnavailable  # noqa: PLC0415 -- as above

    if settings.gateway_url is None or settings.token_file is None:
        return None
    try:
        _read_token(settings.token_file)
    except TokenUnavailable as error:
        return error.message
    return None


def _read_token(path: Path) -> str:
    """Raises TokenUnavailable: the file cannot be read, or holds none. It is named, and not quoted."""
    from smcp_agent.connecting.tokens import check_token  # noqa: PLC0415 -- as above
    from smcp_agent.errors import Malformed, TokenUnavailable  # noqa: PLC0415

    try:
        return check_token(path.read_text(encoding="utf-8").strip())
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise TokenUnavailable(f"SMCP_TOKEN_FILE: {path} cannot be read: {why}") from None
    except Malformed as error:
        raise TokenUnavailable(f"SMCP_TOKEN_FILE: {path}: {error.message.removeprefix('token: ')}") from None
    except ValueError:
        raise TokenUnavailable(f"SMCP_TOKEN_FILE: {path} is no text") from None
