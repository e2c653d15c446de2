"""The configuration files of MCP clients, and the entry in them that starts `smcp-agent mcp`.

`changed` says what a file would be, `write` writes it; neither prints. Entries of others stay as they are, and a file
whose comments would be lost is not written. The formats are those of November 2026 (docs/guides/mcp-clients.md).
"""

import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "SMCP_TOKEN"
PRIVATE: Final = 0o600
_INPUT: Final = {"type": "promptString", "id": "smcp-token", "description": "Token for the office", "password": True}
"""VS Code asks for it once, and keeps it."""


class ConfigFileError(Exception):
    """A file is left as it is; the text says why."""


@dataclass(frozen=True)
class McpClient:
    """An MCP client and its file: its directory (see `_directories`) and name, and the object with the servers.

    `reference`: how the file refers to the variable with the token; None: it cannot, and holds the token itself.
    """

    title: str
    directory: str
    file: str
    section: str = "mcpServers"
    reference: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    """What an entry has beside the command."""

    @property
    def path(self) -> Path:
        """Where the file is, also if it is missing; a link is followed."""
        return (_directories()[self.directory] / self.file).resolve()

    def entry(self, command: str, arguments: list[str], token: str | None) -> dict[str, Any]:
        """The entry for a command; the token stands in it only where there is no reference."""
        entry: dict[str, Any] = {**self.fields, "command": command, "args": arguments}
        if token is not None and self.reference == VARIABLE:
            entry["env_vars"] = [VARIABLE]
        elif token is not None:
            entry["env"] = {VARIABLE: self.reference or token}
        return entry

    def text(self, name: str, entry: Mapping[str, Any]) -> str:
        """The entry as it stands in the file."""
        if not self.file.endswith(".toml"):
            return json.dumps(self._with({}, name, entry), indent=2, ensure_ascii=False) + "\n"
        # a text of JSON, and a list of them, mean the same in TOML
        lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entry.items())
        return f"[{self.section}.{name}]\n{''.join(lines)}"

    def changed(self, before: str, name: str, entry: Mapping[str, Any]) -> str | None:
        """The file's text with the entry; None: it is there. Raises ConfigFileError."""
        toml = self.file.endswith(".toml")
        try:
            document = tomllib.loads(before) if toml else json.loads(before.strip() or "{}")
        except (ValueError, RecursionError) as error:
            what = "TOML" if toml else "JSON without comments and trailing commas, which would be lost"
            raise ConfigFileError(f"it is not {what} ({error})") from None
        section = document.get(self.section, {}) if isinstance(document, dict) else None
        if not isinstance(section, dict):
            raise ConfigFileError(f"it has no object {self.section!r}")
        former = section.get(name)
        if former == entry:
            return None
        if former is not None and "smcp-agent" not in str(former):
            raise ConfigFileError(f"{name!r} is another MCP server there: choose another name with --entry")
        merged = self._with(document, name, entry)
        if not toml:
            indent = re.search(r'^([ \t]+)"', before, re.MULTILINE)
            return json.dumps(merged, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"
        old_table = rf"^\[{self.section}\.{name}\][^\n]*\n(?:(?!\[)[^\n]*\n)*"
        kept = re.sub(old_table, "", f"{before.rstrip()}\n", flags=re.MULTILINE).rstrip()
        after = f"{kept}\n\n{self.text(name, entry)}".lstrip()
        if not _means(after, merged):
            raise ConfigFileError(f"its {self.section!r} is written in a way that cannot be added to")
        return after

    def _with(self, document: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        merged = {**document, self.section: {**document.get(self.section, {}), name: dict(entry)}}
        if "${input:" in str(entry) and _INPUT not in (inputs := document.get("inputs", [])):
            merged["inputs"] = [*inputs, _INPUT]
        return merged


def _means(text: str, document: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == document
    except tomllib.TOMLDecodeError:
        return False


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
    "claude-code": McpClient("Claude Code", "claude", ".claude.json", reference="${SMCP_TOKEN}", fields=_STDIO),
    "cursor": McpClient("Cursor", "home", ".cursor/mcp.json", reference="${env:SMCP_TOKEN}", fields=_STDIO),
    "vscode": McpClient("VS Code", "applications", "Code/User/mcp.json", "servers", "${input:smcp-token}", _STDIO),
    "codex": McpClient("Codex", "codex", "config.toml", "mcp_servers", VARIABLE),
    "zed": McpClient("Zed", "zed", "settings.json", "context_servers", fields={"source": "custom"}),
}


def read(path: Path) -> str | None:
    """The text of a file; None: there is none. Raises ConfigFileError."""
    try:
        return path.read_bytes().decode("utf-8-sig") if path.exists() else None
    except OSError as error:
        raise ConfigFileError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigFileError("it cannot be read: it is not UTF-8") from None


def write(path: Path, before: str | None, after: str, *, private: bool) -> Path | None:
    """Replace a file as a whole; returns the copy of the former one. Raises ConfigFileError."""
    if read(path) != before:
        raise ConfigFileError("another program has just changed it: try again")
    temporary, backup = "", None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = PRIVATE if private or before is None else path.stat().st_mode & 0o777
        if before is not None:
            backup = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%d-%H%M%S}.bak")
            shutil.copy2(path, backup)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(after)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise ConfigFileError(f"it cannot be written: {error.strerror}") from None
    return backup
