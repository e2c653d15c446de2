"""The configuration files of MCP clients, and the entry in them that starts `smcp-agent mcp`.

A file of which any part would be lost is not written. No secret is written: the token is in a file of its own. The
formats are those of November 2026 (docs/guides/mcp-clients.md).
"""

import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from smcp_proto.jsonc import plain_json

PRIVATE: Final = 0o600


class ConfigFileError(Exception):
    """A file is left as it is; the text says why."""


@dataclass(frozen=True)
class McpClient:
    """An MCP client and its file: its directory (see `_directories`) and name, and the object with the servers."""

    title: str
    directory: str
    file: str
    section: str = "mcpServers"
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the file is, also if it is missing; a link is followed."""
        return Path(os.path.realpath(_directories()[self.directory] / self.file))

    def text(self, name: str, entry: Mapping[str, Any]) -> str:
        """The entry as it stands in the file."""
        if not self.file.endswith(".toml"):
            return json.dumps(self._with({}, name, entry), indent=2, ensure_ascii=False) + "\n"
        # a text of JSON, and a list of them, mean the same in TOML
        lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entry.items())
        return f"[{self.section}.{name}]\n{''.join(lines)}"

    def changed(self, before: str, name: str, entry: Mapping[str, Any]) -> str | None:
        """The file's text with the entry; None: it is there. Raises ConfigFileError."""
        kind, read = ("TOML", tomllib.loads) if self.file.endswith(".toml") else ("JSON", _read_json)
        try:
            document = read(before)
        except (ValueError, RecursionError) as error:
            raise ConfigFileError(f"it is not {kind} ({error})") from None
        section = document.get(self.section, {}) if isinstance(document, dict) else None
        if not isinstance(section, dict):
            raise ConfigFileError(f"it has no object {self.section!r}")
        if name in section:
            if section[name] == entry:
                return None
            raise ConfigFileError(f"{name!r} is there already: remove it, or choose another name with --entry")
        merged = self._with(document, name, entry)
        for after in self._inserted(before, merged, name, entry):
            with suppress(ValueError, ConfigFileError):
                if read(after) == merged:
                    return after
        raise ConfigFileError("a part of it would be lost, such as comments: add the entry by hand")

    def _inserted(self, before: str, merged: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        """The text with the entry first in each object that may be that of the servers, and in a new one; all of it
        written anew, if it has no comments."""
        if self.file.endswith(".toml"):
            yield f"{before.rstrip()}\n\n{self.text(name, entry)}".lstrip()
            return
        before = before if before.strip() else "{}\n"
        found = re.search(r'^([ \t]+)"', before, re.MULTILINE)
        indent, plain = found[1] if found else "  ", plain_json(before)
        for opening in re.finditer(rf'"{self.section}"\s*:\s*{{', plain):
            yield _at(before, plain, opening.end(), indent, 2, {name: entry})
        if first := re.search("{", plain):
            yield _at(before, plain, first.end(), indent, 1, {self.section: {name: entry}})
        if plain == before:
            yield json.dumps(merged, indent=indent, ensure_ascii=False) + "\n"

    def _with(self, document: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        return {**document, self.section: {**document.get(self.section, {}), name: dict(entry)}}


def _at(before: str, plain: str, position: int, indent: str, depth: int, members: Mapping[str, Any]) -> str:
    lines = json.dumps(members, indent=indent, ensure_ascii=False).splitlines()[1:-1]
    text = "".join(f"\n{indent * (depth - 1)}{line}" for line in lines)
    rest = before[position:]
    end = f"\n{indent * (depth - 1)}" if rest.startswith("}") else ""
    return f"{before[:position]}{text}{'' if plain[position:].lstrip().startswith('}') else ','}{end}{rest}"


def _read_json(text: str) -> Any:
    return json.loads(plain_json(text).strip() or "{}", object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ConfigFileError(f"{max(keys, key=keys.count)!r} stands twice in one object, and one would be lost")
    return dict(pairs)


def _directories() -> dict[str, Path]:
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    windows = Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    known = {"win32": windows, "darwin": home / "Library" / "Application Support"}
    return {
        "home": home,
        "applications": known.get(sys.platform, config),
        "claude": Path(os.environ.get("CLAUDE_CONFIG_DIR") or home),
        "codex": Path(os.environ.get("CODEX_HOME") or home / ".codex"),
        "zed": {"win32": windows / "Zed"}.get(sys.platform, config / "zed"),
    }


_STDIO: Final = {"type": "stdio"}
CLIENTS: Final[Mapping[str, McpClient]] = {
    "claude-desktop": McpClient("Claude Desktop", "applications", "Claude/claude_desktop_config.json"),
    "claude-code": McpClient("Claude Code", "claude", ".claude.json", fields=_STDIO),
    "cursor": McpClient("Cursor", "home", ".cursor/mcp.json", fields=_STDIO),
    "vscode": McpClient("VS Code", "applications", "Code/User/mcp.json", "servers", _STDIO),
    "codex": McpClient("Codex", "codex", "config.toml", "mcp_servers"),
    "zed": McpClient("Zed", "zed", "settings.json", "context_servers", fields={"source": "custom"}),
}


def read(path: Path) -> str | None:
    """The text of a file; None: there is none. Raises ConfigFileError."""
    try:
        return path.read_bytes().decode("utf-8-sig") if path.exists() else None
    except OSError as error:
        raise ConfigFileError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigFileError("it cannot be read: it is not UTF-8 text") from None


def write(path: Path, before: str | None, after: str) -> Path | None:
    """Replace a file as a whole; returns the copy of the former one. Raises ConfigFileError."""
    if read(path) != before:
        raise ConfigFileError("another program has just changed it: try again")
    backup, temporary = None, path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = PRIVATE if before is None else path.stat().st_mode & 0o777
        temporary.touch(PRIVATE)
        temporary.write_bytes(after.encode())
        temporary.chmod(mode)
        if before is not None:
            backup = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.bak")
            backup.touch(PRIVATE)
            shutil.copy2(path, backup)
        temporary.replace(path)
    except (OSError, UnicodeEncodeError) as error:
        for each in (temporary, backup):
            if each is not None:
                with suppress(OSError):
                    each.unlink()
        why = error.strerror if isinstance(error, OSError) else "it has a text that is not Unicode"
        raise ConfigFileError(f"it cannot be written: {why}") from None
    return backup
