"""The commands `smcp-agent mcp` and `smcp-agent mcp install`: an office for MCP clients."""

import logging
import re
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from smcp_agent.cli.output import print_failure, print_hint
from smcp_agent.cli.run_command import FAILED, WRONG_USAGE, Options, run
from smcp_agent.connecting.options import read_token
from smcp_agent.errors import Malformed, TokenUnavailable
from smcp_agent.mcp.client_configs import CLIENTS, ConfigFileError, read, write
from smcp_agent.mcp.tools import AWAY_S, MAX_TOOLS, ToolListOptions, ToolMode
from smcp_proto.printable import without_login

NEEDS_EXTRA: Final = "smcp-agent mcp needs the MCP SDK: pip install './libs/smcp-agent[mcp]'"
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with the token, read before each connection: it may be renewed."),
]

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

    async def serve() -> bool:
        listing = ToolListOptions(tools, max_tools, tuple(always_list or ()))
        return await serve_stdio(chosen.agent(AWAY_S), listing, max_chars)

    run(chosen, serve(), endless=True)


def _check_extra() -> None:
    if find_spec("mcp_types") is None:
        print_failure(NEEDS_EXTRA)
        raise typer.Exit(WRONG_USAGE)


def _with_token_file(chosen: Options, path: Path | None) -> Options:
    if path is None:
        return chosen

    async def read() -> str:
        try:
            return read_token(path, "--token-file")
        except TokenUnavailable as error:
            raise Malformed(error.message) from None

    return replace(chosen, token=read)


async def _check(chosen: Options) -> bool:
    """Raises Malformed: what the command would refuse at its start, without a gateway."""
    chosen.agent()
    if callable(chosen.token):
        await chosen.token()
    return True


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
        raise typer.BadParameter(f"{surplus[0]!r} is no option of `smcp-agent mcp`", param_hint="OPTION")


def _command() -> str:
    """The absolute path of `smcp-agent`: desktop applications do not have a terminal's PATH."""
    beside = Path(sys.executable).with_name("smcp-agent")
    return str(beside) if beside.is_file() else shutil.which("smcp-agent") or "smcp-agent"
