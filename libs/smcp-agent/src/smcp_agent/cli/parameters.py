"""The arguments and options that several commands of `smcp-agent` have, and where they may stand."""

import math
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class OptionsAnywhere(TyperGroup):
    """A group whose own options (`--office`, `--url`, …) may also stand behind the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move them before the command, unless the command has an option of that name."""
        ours = {name: not getattr(each, "is_flag", False) for each in self.get_params(ctx) for name in each.opts}
        at = next((at for at, each in enumerate(args) if each in self.commands), len(args))
        before, command, behind = args[:at], args[at : at + 1], iter(args[at + 1 :])
        for name in command:
            theirs = {name for each in self.commands[name].get_params(ctx) for name in each.opts}
            ours = {name: takes_value for name, takes_value in ours.items() if name not in theirs}
        rest: list[str] = []
        for each in behind:
            if each == "--":
                rest.append(each)
                break
            name, equals, _ = each.partition("=")
            if name in ours and name.startswith("--"):
                before.append(each)
                before.extend([next(behind, "")] if ours[name] and not equals else [])
            else:
                rest.append(each)
        return super().parse_args(ctx, [*before, *command, *rest, *behind])


def _parse_limit(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:  # nor is it NaN, which is in no range
        raise typer.BadParameter(f"{text!r} is no number of seconds above 0")
    return seconds


Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, for programs.")]
Computer = Annotated[str, typer.Argument(metavar="COMPUTER", help="The Computer's name in the office.")]
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
        parser=_parse_limit,
        metavar="SECONDS",
        help="Give up after this time. A Computer has 30 s for an answer.",
    ),
]
ForSeconds = Annotated[
    float | None, typer.Option("--for", parser=_parse_limit, metavar="SECONDS", help="End after a time.")
]
