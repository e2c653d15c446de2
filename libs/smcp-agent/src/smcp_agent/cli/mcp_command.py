"""The command `smcp-agent mcp`: an office for MCP clients, on standard input and output."""

import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from smcp_agent.cli.output import print_failure
from smcp_agent.cli.run_command import WRONG_USAGE, Options, run

NEEDS_EXTRA: Final = "smcp-agent mcp needs the MCP SDK: pip install 'smcp-agent[mcp]'"
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with the token, read before each connection: it may be renewed."),
]

app = typer.Typer()


class _OneLine(logging.Formatter):
    """Log records of one line each: clients show standard error by lines."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", " | ")


@app.callback(invoke_without_command=True)
def mcp(context: typer.Context, token_file: TokenFile = None) -> None:
    """Offer the office to an MCP client, as an MCP server on standard input and output."""
    if context.invoked_subcommand is not None:
        return
    try:
        from smcp_agent.mcp.bridge import serve_stdio  # noqa: PLC0415 -- the MCP SDK is an extra, and takes a second
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        print_failure(NEEDS_EXTRA)
        raise typer.Exit(WRONG_USAGE) from None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("smcp-agent mcp: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # standard output is the client's, also for an error
    chosen: Options = replace(context.obj, json=False)
    if token_file is not None:
        chosen = replace(chosen, token=_from_file(token_file))
    run(chosen, serve_stdio(chosen.agent()), endless=True)


def _from_file(path: Path) -> Callable[[], Awaitable[str]]:
    async def read() -> str:
        return path.read_text(encoding="utf-8").strip()  # noqa: ASYNC240 -- a line of a local file

    return read
