"""Changes a configuration file: adds, enables, disables and removes an MCP server; writes what was imported.

The result of an edit is checked before it is written, and a file is replaced as a whole. A running Computer takes it
over: see `file_changes`.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from smcp_computer.config.file import content_of, parse_config, read_object
from smcp_computer.config.inputs import variable_of
from smcp_computer.config.lint import ConfigError, placed
from smcp_computer.config.other_mcp_hosts import ENABLED_KEYS, servers_of
from smcp_computer.config.secret_store import is_sealed
from smcp_proto.jsonc import has_comments
from smcp_service.files import locked, replace_files
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


def edit_file(path: Path, edit: Edit) -> list[str]:
    """Returns warnings about the server that is added or enabled.

    Raises ConfigError: the file cannot be read or written, is not valid, or is not valid any more with the change;
    it holds comments; there is no such server, or there is one already. The file is as before then."""
    notes: list[str] = []
    try:
        document = _rewritten(path, lambda raw: edited(raw, edit, notes), may_be_new=edit.action == "add")
    except ConfigError as error:
        raise type(error)(*(f"{path}: {problem}" for problem in error.problems)) from None
    config = parse_config(json.dumps(document))
    if edit.name not in config.servers:
        return []
    own = config.places[edit.name].field()
    return [*notes, *(each for each in config.warnings if each.startswith(f"{own}."))]


def write_new(path: Path, document: Mapping[str, Any]) -> None:
    """Write a configuration that its user alone can read, as it may hold secrets. Raises ConfigError: it cannot be
    written, or there is a file already."""
    if path.exists():
        raise ConfigError("is there already: write the result to another file, and move its servers by hand")
    try:
        replace_files({path: _text(document)})
    except OSError as error:
        raise _not_writable(path, error) from None


def edited(raw: bytes | str, edit: Edit, notes: list[str]) -> dict[str, Any]:
    """What the file holds with the change; an empty one is one without servers. Raises ConfigError. Pure.

    `notes` tell what was added beside the server."""
    document = read_object(raw) if raw.strip() else {"servers": {}}
    if has_comments(raw.decode(errors="replace") if isinstance(raw, bytes) else raw):
        raise ConfigError("has comments, which would get lost: change it by hand")
    above, _, _ = servers_of(document)
    _change(document[above] if above else document or document.setdefault("servers", {}), edit)
    _add_inputs(document, edit, notes)
    return document


def _add_inputs(document: dict[str, Any], edit: Edit, notes: list[str]) -> None:
    """Add an input for each `${input:ID}` of an added server that is the id of none."""
    known = parse_config(json.dumps(document)).inputs
    wanted = dict.fromkeys(each.name for _, each in placed(edit.server, "") if each.kind == "input")
    about = {"type": "promptString", "description": f"for the MCP server {edit.name}", "password": True}
    for each in (each for each in wanted if each not in known):
        document["inputs"] = [*(document.get("inputs") or ()), {"id": each, **about}]
        how = f"`smcp-computer secrets set {shlex.quote(each)}` or {variable_of(each)} gives its value"
        notes.append(f"inputs: {each!r} was added{did_you_mean(each, known)}; {how}")


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


def _rewritten(path: Path, change: Callable[[bytes], Mapping[str, Any]], *, may_be_new: bool) -> Mapping[str, Any]:
    """Replace the file by what `change` makes of its content, while other commands wait, and return that.

    Whoever reads the file meanwhile sees the old or the new one, never a mix. A new one can be read by its user alone,
    as it may hold secrets. Raises ConfigError, also where a file is encrypted, and would not be any more.
    """
    path = path.resolve()
    try:
        with locked(path.parent):
            is_new = may_be_new and not path.exists()
            document = change(b"" if is_new else content_of(path))
            if not is_new and is_sealed(path.read_bytes()):
                raise ConfigError("is encrypted: decrypt it with `smcp-computer secrets decrypt`, then change it")
            replace_files({path: _text(document)}, keep_access=True)
    except OSError as error:
        raise _not_writable(path, error) from None
    return document


def _text(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _not_writable(path: Path, error: OSError) -> ConfigError:
    why = f"cannot be written in {path.parent}: {error.strerror or type(error).__name__}"
    hint = "a Computer that may only read its configuration, as under systemd, leaves the change to you"
    return ConfigError(f"{why}; {hint}")
