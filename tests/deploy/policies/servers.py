"""A Computer's configuration is one that it takes whole, and nothing in it is a secret: that comes from an input."""

import re
from collections.abc import Iterator
from typing import Final

from smcp_computer.config.file import ComputerConfig, parse_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.redaction import REDACTED, literal_secrets, shown
from tests.deploy.objects import Manifests, title

_FILE: Final = "computer.json"
_NAMES_A_SECRET: Final = re.compile(r"auth|credential|key|passw|secret|token", re.IGNORECASE)


def servers(manifests: Manifests) -> list[str]:
    problems = []
    for told in manifests.of("ConfigMap"):
        if _FILE not in told["data"]:
            continue
        try:
            config = parse_config(told["data"][_FILE])
        except ConfigError as error:
            problems += [f"{title(told)}: {_FILE}: {why}" for why in error.problems]
        else:
            problems += [f"{title(told)}: {_FILE}: {why}" for why in (*config.warnings, *_secrets(config))]
    return problems


def _secrets(config: ComputerConfig) -> Iterator[str]:
    """What `get_config` hides is a secret in a header, or if its name says so; the rest it would show."""
    for found in literal_secrets(config):
        yield f"{found} looks like a secret"
    to_see = shown(config)
    for server, said in to_see.servers.items():
        parameters = said.model_dump()["server_parameters"]
        for place in ("env", "headers"):
            for name, value in (parameters.get(place) or {}).items():
                if value == REDACTED and (place == "headers" or _NAMES_A_SECRET.search(name)):
                    yield f"servers.{server}.server_parameters.{place}.{name} stands in the manifest"
    for one in to_see.inputs or []:
        if one.model_dump().get("default") == REDACTED:
            yield f"inputs: the default of {one.id} stands in the manifest"
