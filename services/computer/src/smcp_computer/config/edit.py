"""Changes the MCP servers in a configuration file: adds, enables, disables and removes one.

The result is checked before it is written, and a file is replaced as a whole. A running Computer takes it over: see
`watch`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from smcp_computer.config.file import content_of, has_comments, locked, parse_config, read_jsonc, write_config
from smcp_computer.config.host_checks import missing_on_host
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.other_mcp_hosts import ENABLED_KEYS
from smcp_service.settings import did_you_mean


class NoChange(ConfigError):
    """There is no such server, or there is one of that name already."""


Action = Literal["add", "remove", "enable", "disable"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change."""

    action: Action
    name: str
    server: Mapping[str, Any] | None = None
    """What is added, in any form that the file may have."""
    replace: bool = False
    """Add it in place of one of that name."""
    rewrite: bool = False
    """Write the file although its comments get lost."""


def edit_file(path: Path, edit: Edit) -> list[str]:
    """Returns warnings about the server that is added or enabled.

    Raises ConfigError: the file cannot be read or written, is not valid, or is not valid any more with the change;
    it holds comments; there is no such server, or there is one already. The file is as before then."""
    try:
        with locked(path):
            is_new = edit.action == "add" and not path.exists()
            document = edited(b"" if is_new else content_of(path), edit)
            write_config(path, document)
    except ConfigError as error:
        raise type(error)(*(f"{path}: {problem}" for problem in error.problems)) from None
    config = parse_config(json.dumps(document))
    if edit.name not in config.servers:
        return []
    own = config.places[edit.name].field()
    return [each for each in (*config.warnings, *missing_on_host(config, os.environ)) if each.startswith(f"{own}.")]


def edited(raw: bytes | str, edit: Edit) -> dict[str, Any]:
    """What the file holds with the change; an empty one is one without servers. Raises ConfigError. Pure."""
    document = read_jsonc(raw) if raw.strip() else {"servers": {}}
    if not isinstance(document, dict):
        raise ConfigError("the file holds no JSON object")
    if has_comments(raw) and not edit.rewrite:
        raise ConfigError("has comments, which would get lost: change it by hand, or say --rewrite")
    _change(_servers_of(document), edit)
    parse_config(json.dumps(document))
    return document


def _servers_of(document: dict[str, Any]) -> dict[str, Any]:
    for key in ("servers", "mcpServers"):
        if isinstance(held := document.get(key), dict):
            return held
    return document or document.setdefault("servers", {})


def _change(servers: dict[str, Any], edit: Edit) -> None:
    there = [name for name, body in servers.items() if isinstance(body, dict)]
    if edit.action == "add":
        if edit.name in there and not edit.replace:
            raise NoChange(f"there is a server {edit.name!r} already: --replace puts this one in its place")
        servers[edit.name] = edit.server
        return
    if edit.name not in there:
        raise NoChange(f"there is no server {edit.name!r}{did_you_mean(edit.name, there)}")
    if edit.action == "remove":
        del servers[edit.name]
    elif edit.action == "disable":
        servers[edit.name]["disabled"] = True
    else:
        for key in ("disabled", *ENABLED_KEYS):
            servers[edit.name].pop(key, None)
