"""Pinned tool definitions (ADR 0049): what the user of this host approved, against what MCP servers list now.

The pins stand in a file beside the configuration, which `smcp-computer pin` writes. A tool of a pinned server whose
definition is another one, or new, is withheld: nothing of its new definition is listed, and it is not called. `tools`
asks here for what may be listed; `mcp.supervisor` has what the servers list.
"""

import asyncio
import json
import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import mcp_types as types
from pydantic import BaseModel, ConfigDict

from smcp_bus import exact_json
from smcp_bus.audit import sha256
from smcp_computer.config.file import read_object
from smcp_computer.config.lint import ConfigError, checked
from smcp_proto.errors import NotAllowed
from smcp_proto.printable import INVISIBLE, printable
from smcp_service.files import UnusableFile, read_protected

_log = logging.getLogger("smcp_computer.pins")

FIELDS: Final = ("title", "description", "inputSchema", "outputSchema", "annotations")
"""What is pinned of a tool, beside its name. Icons and `_meta` reach no model, and change with versions."""
HASH: Final = "sha256"
MOST_NAMED: Final = 10
"""Tools that a warning names: a server may list thousands."""
_UPDATE: Final = "smcp-computer pin --update"
_NOTE: Final = "[Not callable: the user of its Computer has not approved the present definition of this tool.]"

Entries = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By MCP server and tool (its original name): the `FIELDS` as in MCP, and the `HASH`."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1]
    servers: dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class PinCheck:
    """The tools of one MCP server, compared with its pins."""

    listed: tuple[types.Tool, ...]
    """As the server lists them."""
    tools: tuple[types.Tool, ...]
    """As Agents may see them."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """By tool that is not as it is pinned: `new`, `gone`, or `changed: ` and the fields."""
    warning: str = ""


class Pins:
    """The pins of a file, which need not exist; without a path no tool is pinned. `enforces` False: a tool that is not
    as it is pinned is called all the same. `warn` gets the name of an MCP server, and what to know about its tools.

    Raises UnusableFile.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        enforces: bool = True,
        warn: Callable[[str, str], None] = lambda server, why: None,
    ) -> None:
        self.path, self.enforces, self._warn = path or Path(), enforces, warn
        self.problem: str | None = None
        """Why the file cannot be followed as it is now: the pins from before count."""
        self._pinned: Entries = {} if path is None else read_pins(path)
        self._checked: dict[str, PinCheck] = {}
        if self._pinned:
            _log.info("the tools of %s are pinned (%s)", ", ".join(sorted(self._pinned)), path)

    @property
    def counts(self) -> dict[str, float]:
        """How many tools of each pinned MCP server differ from their pins."""
        return {name: len(found.changes) for name, found in self._checked.items() if name in self._pinned}

    def warnings(self, server: str) -> tuple[str, ...]:
        return tuple(filter(None, [self._checked[server].warning])) if server in self._checked else ()

    async def reload(self) -> None:
        """Read the file again; `check` counts with it. One that is broken, or gone, changes nothing."""
        try:
            pinned = await asyncio.to_thread(read_pins, self.path, may_be_missing=not self._pinned)
        except UnusableFile as error:
            if self.problem != str(error):
                _log.warning("the changed pins cannot be used, keeping the previous ones: %s", error)
            self.problem = str(error)
            return
        self.problem = None
        if pinned != self._pinned:
            self._pinned, self._checked = pinned, {}
            _log.info("the pins of tools changed")

    def check(self, listed: Mapping[str, tuple[types.Tool, ...]]) -> Mapping[str, PinCheck]:
        """Compare the tools of all MCP servers with their pins. What is the same object as before is not compared."""
        before, self._checked = self._checked, {}
        for server, tools in listed.items():
            if (found := before.get(server)) is None or found.listed is not tools:
                found = self._compared(server, tools)
                if found.warning:
                    self._warn(server, found.warning)
            self._checked[server] = found
        return self._checked

    def _compared(self, server: str, tools: tuple[types.Tool, ...]) -> PinCheck:
        pinned = self._pinned.get(server)
        if pinned is None or not tools:  # none: a server that never started, or whose tools are hidden
            return PinCheck(tools, tools)
        changes: dict[str, str] = {}
        shown: list[types.Tool] = []
        for tool in tools:
            change = _change(pinned.get(tool.name), entry_of(tool))
            if change is not None:
                changes.setdefault(tool.name, change)
            shown.append(tool if change is None or not self.enforces else _withheld(tool.name, pinned))
        changes |= dict.fromkeys(sorted(pinned.keys() - {tool.name for tool in tools}), "gone")
        named = [f"{name!r} ({change})" for name, change in changes.items()]
        if len(named) > MOST_NAMED:
            named[MOST_NAMED:] = [f"and {len(named) - MOST_NAMED} more"]
        effect = "not called" if self.enforces else "called all the same (SMCP_PINS=warn)"
        what = f"tools that differ from their pins are {effect}: {', '.join(named)}"
        warning = printable(f"{what}; to approve them: {_UPDATE} {shlex.quote(server)}")
        return PinCheck(tools, tuple(shown), changes, warning if changes else "")


def not_approved(tool: str, server: str, change: str) -> NotAllowed:
    """The refusal of a call, for the Agent; it holds nothing of the new definition."""
    what = "is new" if change == "new" else f"has changed since it was approved ({change.removeprefix('changed: ')})"
    until = f"is not called until the user of its Computer runs `{_UPDATE} {shlex.quote(server)}`"
    return NotAllowed(f"the tool {tool!r} {what}, and {until}", details={"field": "tool_name", "change": change})


def entry_of(tool: types.Tool) -> dict[str, Any]:
    """What the file holds of a tool. The hash is of canonical JSON: sorted keys, no white space."""
    dumped: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    definition = {str(name): dumped[name] for name in FIELDS if name in dumped}
    return {**definition, HASH: _hash({"name": tool.name, **definition})}


def read_pins(path: Path, *, may_be_missing: bool = True) -> Entries:
    """The pins of a file; none where there is no file. Raises UnusableFile: it names the file and the field."""
    if may_be_missing and not path.exists():
        return {}
    problems: list[str] = []
    try:
        file = checked(_File.model_validate, read_object(read_protected(path)), problems)
    except ConfigError as error:
        raise UnusableFile(f"{path}: {error}") from None
    servers = {} if file is None else file.servers
    for server, name, entry in ((server, *each) for server, tools in servers.items() for each in tools.items()):
        place = f"servers.{server}.{name}."
        problems += (f"{place}{key}: is not a known field" for key in entry.keys() - {*FIELDS, HASH})
        tool = checked(types.Tool.model_validate, {**entry, "name": name}, problems, place.__add__)
        if tool is not None and entry.get(HASH) != entry_of(tool)[HASH]:
            problems.append(
                f"{place}{HASH}: does not match this definition; do not edit the file, run `smcp-computer pin`"
            )
    if problems:
        raise UnusableFile("\n".join(f"{path}: {printable(each)}" for each in problems))
    return servers


def readable_json(value: object) -> str:
    """Sorted, for a diff. What cannot be seen is written as an escape, since it may hide instructions for a model."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False)
    return "".join(
        each if each == "\n" or (each.isprintable() and not INVISIBLE.match(each)) else json.dumps(each)[1:-1]
        for each in text
    )


def _hash(value: object) -> str:
    return sha256(exact_json.written(value, sort_keys=True))


def _change(pinned: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str | None:
    if pinned is None:
        return "new"
    fields = [each for each in FIELDS if _hash(pinned.get(each)) != _hash(now.get(each))]
    return f"changed: {', '.join(fields)}" if fields else None


def _withheld(name: str, pinned: Mapping[str, Mapping[str, Any]]) -> types.Tool:
    """What is listed in place of a tool: as it was approved; of a new one the name alone."""
    definition: dict[str, Any] = {"inputSchema": {"type": "object"}, **pinned.get(name, {}), "name": name}
    definition["description"] = f"{_NOTE} {definition.get('description', '')}".rstrip()
    return types.Tool.model_validate(definition)
