"""Which variables of this host a program may need to reach the network, and that hold no secret. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from smcp_proto.schemas.config import MCPServerConfig, MCPServerStdioConfig

SETTING: Final = "SMCP_PASS_NETWORK_ENV"

_NAMES: Final = frozenset(
    {
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT"),
        *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"),
    }
)
_NPM: Final = re.compile(r"npm_config_(?!.*(?:auth|token|passw|secret|key|otp|user))\w+", re.IGNORECASE)
_LOGIN: Final = re.compile(r"//[^/\s@]+@")
"""Who logs in where, inside of an address."""


def network_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of `environ` that say how the network is reached: proxies, certificates, package indexes.

    An address with a user or a password in it is a secret, and left out.
    """
    return {
        name: value
        for name, value in environ.items()
        if (name.upper() in _NAMES or _NPM.fullmatch(name)) and not _LOGIN.search(value)
    }


def with_variables(server: MCPServerConfig, environment: Mapping[str, str]) -> MCPServerConfig:
    """`server` with `environment` under its own `env`, where it is a program."""
    if not isinstance(server, MCPServerStdioConfig) or not environment:
        return server
    own = server.server_parameters
    env = {**environment, **(own.env or {})}
    return server.model_copy(update={"server_parameters": own.model_copy(update={"env": env})})
