"""The application `smcp-agent`: its options, the parameters that commands share, and `asks`, which defines one."""

import math
from collections.abc import Awaitable, Callable
from importlib.metadata import version as version_of
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from smcp_agent.cli.output import working
from smcp_agent.cli.run_command import Answer, Options, ask, completions
from smcp_agent.client import SmcpAgent
from smcp_agent.connecting.options import MAX_PAYLOAD


class OptionsAnywhere(TyperGroup):
    """A group that accepts its own options (`--office`, `--url`, …) also after the command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move each option of the group before the command. An option that both define stays where it is."""
        at = next((at for at, each in enumerate(args) if each in self.commands), len(args))
        options = _options(self, ctx)
        for name in args[at : at + 1]:
            for own in _options(self.commands[name], ctx):
                options.pop(own, None)
        found, rest, left = list[str](), list[str](), iter(args[at + 1 :])
        for each in left:
            name, equals, _ = each.partition("=")
            if name in options and name.startswith("--"):
                found += [each, *([next(left, "")] if options[name] and not equals else [])]
            else:
                rest += [each, *(left if each == "--" else ())]  # after it there are no options
        return super().parse_args(ctx, [*args[:at], *found, *args[at : at + 1], *rest])


def _options(command: Any, context: Any) -> dict[str, bool]:
    """The options of a command, and whether each takes a value."""
    return {name: not getattr(each, "is_flag", False) for each in command.get_params(context) for name in each.opts}


def parse_limit(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:  # nor is it NaN, which is in no range
        raise typer.BadParameter(f"{text!r} is not a positive number of seconds")
    return seconds


async def _computers(agent: SmcpAgent) -> list[str]:
    return list(agent.computers())


def parse_directory(text: str) -> Path:
    if not text:
        raise typer.BadParameter("must name a directory; `.` is the current one")
    return Path(text)


def check_pairs(pairs: list[str] | None) -> list[str]:
    """Callback of a parameter: texts with a `=`."""
    if not all("=" in each for each in pairs or ()):
        raise typer.BadParameter("is not of the form ARGUMENT=VALUE")
    return pairs or []


def complete_computer(context: typer.Context, incomplete: str) -> list[str]:
    return completions(context, incomplete, _computers)


def complete_tool(context: typer.Context, incomplete: str) -> list[str]:
    computer = context.params.get("computer") or ""

    async def names(agent: SmcpAgent) -> list[str]:
        return [each.name for each in await agent.get_tools(computer)]

    return completions(context, incomplete, names)


Computer = Annotated[
    str,
    typer.Argument(metavar="COMPUTER", help="The Computer's name in the office.", autocompletion=complete_computer),
]
AnyComputer = Annotated[
    str | None, typer.Argument(metavar="[COMPUTER]", help="Only this one (default: all of the office).")
]
Server = Annotated[
    str | None, typer.Option(metavar="SERVER", help="The MCP server to ask (default: the Computer finds out).")
]
OnlyServer = Annotated[
    str | None,
    typer.Option(metavar="SERVER", help="Only those of this MCP server, by its name in the Computer's configuration."),
]
Limit = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        parser=parse_limit,
        metavar="SECONDS",
        help="Give up after this time (default: 30 s).",
    ),
]

app = typer.Typer(
    name="smcp-agent",
    help="Use the tools, desktops and documents of the Computers in an office.",
    no_args_is_help=True,
    cls=OptionsAnywhere,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smcp-agent {version_of('smcp-agent')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    office: Annotated[
        str, typer.Option(envvar="SMCP_OFFICE", help="The office to join; `smcp up` opens this one.")
    ] = "home",
    url: Annotated[
        str, typer.Option(envvar="SMCP_URL", metavar="URL[,URL]", help="Where a gateway listens, or several.")
    ] = "http://127.0.0.1:8000",
    name: Annotated[
        str | None, typer.Option(envvar="SMCP_AGENT_NAME", help="This Agent's name (default: user@host-pid).")
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            envvar="SMCP_TOKEN",
            metavar="TOKEN",
            help="A key or JWT, where the gateway asks who you are. Others on this machine can read the command line: "
            "the variable is safer.",
        ),
    ] = "",
    max_payload: Annotated[
        int,
        typer.Option(
            envvar="SMCP_MAX_PAYLOAD",
            min=1,
            metavar="BYTES",
            help="The largest result; the services have the same setting.",
        ),
    ] = MAX_PAYLOAD,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output, for programs.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Use the tools, desktops and documents of the Computers in an office."""
    context.obj = Options.chosen(url, office, name, token, max_payload, as_json=as_json)


Query = Callable[..., Awaitable[Answer]]


def asks(what: str, name: str | None = None) -> Callable[[Query], Query]:
    """Define the command of a query: the parameters after the Agent, and `--timeout`; `what` is shown meanwhile."""

    def define(query: Query) -> Query:
        def command(context: typer.Context, timeout: float | None, **given: Any) -> None:
            ask(context.obj, working(what.format(**given)), lambda agent: query(agent, **given), timeout=timeout)

        _, *parameters = signature(query).parameters.values()
        kinds = {"context": typer.Context, **{each.name: each.annotation for each in parameters}, "timeout": Limit}
        defaults = {each.name: each.default for each in parameters} | {"timeout": None}
        command.__annotations__ = kinds
        own = [
            Parameter(each, Parameter.KEYWORD_ONLY, annotation=kind, default=defaults.get(each, Parameter.empty))
            for each, kind in kinds.items()
        ]
        command.__signature__ = Signature(own)  # type: ignore[attr-defined]
        app.command(name or query.__name__, help=query.__doc__)(command)
        return query

    return define
