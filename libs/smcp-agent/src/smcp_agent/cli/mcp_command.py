"""The commands `smcp-agent mcp` and `smcp-agent mcp install`: an office for MCP clients, and their configuration files.

A file of which any part would be lost is not written. No secret is written: the token is in a file of its own. The
formats are those of November 2026 (docs/guides/mcp-clients.md).
"""

import json
import logging
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from smcp_agent.cli.output import print_failure, print_hint
from smcp_agent.cli.run_command import FAILED, WRONG_USAGE, Options, run
from smcp_agent.connecting.options import token_from
from smcp_agent.mcp.tools import AWAY_S, MAX_TOOLS, ToolListOptions, ToolMode
from smcp_proto.jsonc import plain_json
from smcp_proto.printable import without_login

NEEDS_EXTRA: Final = "smcp-agent mcp needs the MCP SDK: pip install './libs/smcp-agent[mcp]'"
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with the token, read before each connection: it may be renewed."),
]
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
        for after in self._inserted(before, name, entry):
            with suppress(ValueError, ConfigFileError):
                if read(after) == merged:
                    return after
        raise ConfigFileError("a part of it would be lost, such as comments: add the entry by hand")

    def _inserted(self, before: str, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        """The text with the entry first in each object that may be that of the servers, and in a new one."""
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
        raise ConfigFileError("another program has just changed it; retry")
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


app = typer.Typer()


@app.callback(invoke_without_command=True)
def mcp(
    context: typer.Context,
    token_file: TokenFile = None,
    tools: Annotated[
        ToolMode, typer.Option(help="all: every tool; search: only the search tools; auto: search above --max-tools.")
    ] = ToolMode.AUTO,
    max_tools: Annotated[
        int, typer.Option(min=1, metavar="N", help="The longest list of tools without a search.")
    ] = MAX_TOOLS,
    always_list: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Also list tools whose name matches; repeatable.")
    ] = None,
    max_chars: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cut longer results; the rest is a resource. Default: never.")
    ] = None,
) -> None:
    """Offer the office to an MCP client, as an MCP server on standard input and output."""
    if context.invoked_subcommand is not None:
        return
    _check_extra()
    from smcp_agent.mcp.bridge import serve_stdio  # noqa: PLC0415 -- the MCP SDK takes a second

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="smcp-agent mcp: %(message)s")
    # standard output is the client's, also for an error
    chosen = _with_token_file(replace(context.obj, json=False), token_file)

    async def serve() -> None:
        listing = ToolListOptions(tools, max_tools, tuple(always_list or ()))
        await serve_stdio(chosen.agent(AWAY_S), listing, max_chars)

    run(chosen, serve(), endless=True)


def _check_extra() -> None:
    if find_spec("mcp_types") is None:
        print_failure(NEEDS_EXTRA)
        raise typer.Exit(WRONG_USAGE)


def _with_token_file(chosen: Options, path: Path | None) -> Options:
    return chosen if path is None else replace(chosen, token=token_from(path, "--token-file"))


async def _check(chosen: Options) -> None:
    """Raises Malformed, TokenUnavailable: what the command would refuse at its start, without a gateway."""
    chosen.agent()
    if callable(chosen.token):
        await chosen.token()


@app.command()
def install(
    context: typer.Context,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=f"One of {', '.join(CLIENTS)}.")],
    entry: Annotated[str, typer.Option(metavar="NAME", help="What the client calls the server.")] = "smcp",
    only_print: Annotated[bool, typer.Option("--print", help="Print the entry; write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
    token_file: TokenFile = None,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="-- OPTION", help="Options of `smcp-agent mcp` for the entry.")
    ] = None,
) -> None:
    """Add `smcp-agent mcp` to the file of an MCP client. It shows file and entry first, and keeps a copy."""
    _check_extra()
    if client not in CLIENTS:
        raise typer.BadParameter(f"{client!r} is none of {', '.join(CLIENTS)}", param_hint="CLIENT")
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", entry) is None:
        raise typer.BadParameter("takes 1 to 64 letters, digits, _ and -", param_hint="--entry")
    chosen = _with_token_file(context.obj, token_file)
    if isinstance(chosen.token, str):
        raise typer.BadParameter("would stand in the client's file: give --token-file FILE", param_hint="--token")
    if any(url != without_login(url) for url in chosen.urls):
        raise typer.BadParameter("its login would stand in the client's file", param_hint="--url")
    run(chosen, _check(chosen))
    known = CLIENTS[client]
    arguments = ["mcp", "--url", ",".join(chosen.urls), "--office", chosen.office]
    arguments += [] if context.find_root().params["name"] is None else ["--name", chosen.name]
    arguments += [] if token_file is None else ["--token-file", str(token_file.absolute())]
    arguments += more or []
    _check_options(context, arguments)
    wanted = {**known.fields, "command": _command(), "args": arguments}
    print_hint(f"The entry for {known.title}, whose file is {known.path}:")
    typer.echo(known.text(entry, wanted), nl=False)
    if only_print:
        return
    try:
        before = read(known.path)
        after = known.changed(before or "", entry, wanted)
        if after is None:
            print_hint("It is there already.")
            return
        if not yes:
            typer.confirm("Write it?", abort=True, err=True)
        backup = write(known.path, before, after)
    except ConfigFileError as error:
        print_failure(f"{known.path} is left as it is: {error}")
        raise typer.Exit(FAILED) from None
    print_hint(f"Written. {f'The former file is {backup}. ' if backup else ''}Restart {known.title}.")


def _check_options(context: typer.Context, arguments: list[str]) -> None:
    """Raises UsageError: `smcp-agent` would not take these arguments of `mcp`."""
    assert context.parent is not None
    command = context.parent.command
    with context.find_root().command.make_context("smcp-agent", list(arguments)) as outer:
        _, surplus, _ = command.make_parser(command.make_context("mcp", outer.args[:], outer)).parse_args(outer.args)
    if surplus:
        raise typer.BadParameter(f"{surplus[0]!r} is not an option of `smcp-agent mcp`", param_hint="OPTION")


def _command() -> str:
    """The absolute path of `smcp-agent`: desktop applications do not have a terminal's PATH."""
    beside = Path(sys.executable).with_name("smcp-agent")
    return str(beside) if beside.is_file() else shutil.which("smcp-agent") or "smcp-agent"
