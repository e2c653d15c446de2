"""`smcp-agent`: be an Agent from the shell.

Exit codes: 0 done, 1 the tool or the call failed, 2 wrong usage, 130 ctrl-C, 143 SIGTERM, 129 SIGHUP (of `watch` 0).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version as version_of
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import typer
from typer.core import TyperGroup

from smcp_agent.cli import output
from smcp_agent.cli.mcp_command import app as mcp_app
from smcp_agent.cli.parameters import ARGUMENT_FORMS, convert_texts, read_parameters
from smcp_agent.cli.run_command import HELP_S, Answer, Options, ask, completions, follow, run
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import BadReply, SmcpError
from smcp_agent.tool_calls import DEFAULT_TIMEOUT_S
from smcp_proto.catalog import trace_id
from smcp_proto.schemas import DEFAULT_LIMIT, DEFAULT_OFFSET, MAX_LIMIT, MAX_TIMEOUT_S

OPTIONS_TOO: Final = "Global options (--office, --url, --json, …; see smcp-agent -h) also work here"


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


async def _computers(agent: SmcpAgent) -> list[str]:
    return list(agent.computers())


def check_pairs(pairs: list[str] | None) -> list[str]:
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
    str | None, typer.Argument(metavar="COMPUTER", help="Only this one (default: all of the office).")
]
Server = Annotated[
    str | None, typer.Option(metavar="SERVER", help="Only ask this MCP server, by its name in the configuration.")
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Use the tools, desktops and documents of the Computers in an office."""
    context.obj = Options.chosen(url, office, name, token, as_json=as_json)


Query = Callable[..., Awaitable[Answer]]


def asks(what: str, name: str | None = None) -> Callable[[Query], Query]:
    """Define the command of a query: its parameters are those after `agent`; `what`: its progress text."""

    def define(query: Query) -> Query:
        def command(context: typer.Context, **given: Any) -> None:
            ask(context.obj, output.working(what.format(**given)), lambda agent: query(agent, **given))

        _, *parameters = signature(query).parameters.values()
        own = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        own += [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
        command.__annotations__ = {each.name: each.annotation for each in own}
        command.__signature__ = Signature(own)  # type: ignore[attr-defined]
        app.command(name or query.__name__, help=query.__doc__, epilog=OPTIONS_TOO)(command)
        return query

    return define


app.add_typer(mcp_app, name="mcp")


@asks("asking who is in the office", name="list")
async def list_room(agent: SmcpAgent) -> Answer:
    """List the members of the office."""
    sessions = await agent.list_room()
    found = [each.model_dump(exclude_unset=True) for each in sessions]
    return Answer({"office_id": agent.office, "sessions": found}, lambda: output.print_sessions(sessions, agent.office))


@asks("asking {computer} for its tools")
async def tools(agent: SmcpAgent, computer: Computer) -> Answer:
    """List the tools of a Computer."""
    listed = await agent.get_tools(computer)
    found = [each.model_dump(exclude_unset=True) for each in listed]
    why = ""
    if not listed:
        with suppress(SmcpError, TimeoutError):  # not every Computer knows the query
            async with asyncio.timeout(HELP_S):
                why = await agent.why_no_tools(computer)
    shown = {"computer": computer, "tools": found, **({"why": why} if why else {})}
    return Answer(shown, lambda: output.print_tools(listed, why))


@asks("asking for the states of MCP servers")
async def status(agent: SmcpAgent, computer: AnyComputer = None) -> Answer:
    """Show the state of each MCP server, and why one has no tools."""

    async def of(name: str) -> dict[str, Any]:
        try:
            said = await agent.get_status(name)
        except SmcpError as error:
            if computer is not None:
                raise
            return {"computer": name, "error": error.body().model_dump()}
        return {"computer": name, **said.model_dump(exclude_unset=True, exclude={"req_id"})}

    shown = await asyncio.gather(*map(of, agent.computers() if computer is None else [computer]))
    return Answer({"computers": shown}, lambda: output.print_statuses(shown))


@asks("asking {computer} for its configuration")
async def config(agent: SmcpAgent, computer: Computer) -> Answer:
    """Show the configuration of a Computer, without its secrets."""
    found = (await agent.get_config(computer)).model_dump(exclude_unset=True)
    return Answer({"computer": computer, **found}, lambda: output.print_json(found))


@asks("asking {computer} for its desktop")
async def desktop(
    agent: SmcpAgent,
    computer: Computer,
    size: Annotated[int | None, typer.Option(min=0, metavar="N", help="Maximum number of windows.")] = None,
    window: Annotated[str | None, typer.Option(metavar="URI", help="Only this window.")] = None,
) -> Answer:
    """Show the windows of a Computer."""
    shown = await agent.get_desktop(computer, size=size, window=window)
    found = {"computer": computer, **{name: value for name, value in shown.items() if name != "req_id"}}
    return Answer(found, lambda: output.print_desktop(shown, window))


@asks("asking {computer} for its documents")
async def finder(
    agent: SmcpAgent,
    computer: Computer,
    keyword: Annotated[
        list[str] | None,
        typer.Option(help="Only documents with this in title, keywords or summary; repeatable: any of them."),
    ] = None,
    file_type: Annotated[str | None, typer.Option("--type", help="Only documents of this type, as `xlsx`.")] = None,
    offset: Annotated[int, typer.Option(min=0, help="The first document to show, from 0.")] = DEFAULT_OFFSET,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LIMIT, help="How many documents to show.")] = DEFAULT_LIMIT,
) -> Answer:
    """List the documents of a Computer."""
    page = await agent.get_finder(computer, keywords=keyword or None, file_type=file_type, offset=offset, limit=limit)
    found = {"computer": computer, **{name: value for name, value in page.items() if name != "req_id"}}
    return Answer(found, lambda: output.print_documents(page, offset))


@asks("asking {computer} for its resources")
async def resources(agent: SmcpAgent, computer: Computer, server: Server = None) -> Answer:
    """List the resources of a Computer."""
    found = [each async for each in agent.iter_resources(computer, server=server)]
    return Answer({"computer": computer, "resources": found}, lambda: output.print_resources("Resource", "uri", found))


@asks("asking {computer} for its templates")
async def templates(agent: SmcpAgent, computer: Computer, server: Server = None) -> Answer:
    """List the resource templates of a Computer; `complete` finds values for their arguments."""
    found = [each async for each in agent.iter_resource_templates(computer, server=server)]
    return Answer(
        {"computer": computer, "resourceTemplates": found},
        lambda: output.print_resources("Template", "uriTemplate", found),
    )


@asks("asking {computer} for values")
async def complete(
    agent: SmcpAgent,
    computer: Computer,
    template: Annotated[str, typer.Argument(metavar="TEMPLATE", help="A URI template, as `templates` lists it.")],
    argument: Annotated[str, typer.Argument(metavar="ARGUMENT", help="One of its arguments.")],
    value: Annotated[str, typer.Argument(metavar="BEGINNING", help="What the value begins with.")] = "",
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARGUMENT=VALUE", callback=check_pairs, help="An argument that is chosen already; repeatable."
        ),
    ] = None,
    server: Server = None,
) -> Answer:
    """Complete a template argument."""
    others = {name: given for name, _, given in (each.partition("=") for each in chosen or ())}
    found = await agent.complete(computer, template, argument, value, chosen=others, server=server)
    return Answer({"computer": computer, "completion": found}, lambda: output.print_completion(found))


@asks("reading {uri} of {computer}")
async def read(
    agent: SmcpAgent,
    computer: Computer,
    uri: Annotated[str, typer.Argument(metavar="URI", help="Of a document, a window or another resource.")],
    server: Server = None,
) -> Answer:
    """Read a resource of a Computer: a document, a page of it, …"""
    contents = await agent.read_contents(computer, uri, server=server)
    return Answer({"computer": computer, "uri": uri, **contents.raw}, lambda: output.print_contents(contents))


@app.command(epilog=OPTIONS_TOO)
def call(
    context: typer.Context,
    computer: Computer,
    tool: Annotated[
        str,
        typer.Argument(metavar="TOOL", help="The tool's name, as `tools` lists it.", autocompletion=complete_tool),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=ARGUMENT_FORMS,
            help="The tool's parameters, converted by its schema. KEY=@FILE reads one value from a file; "
            "@FILE reads a JSON object of parameters from a file, `-` from standard input.",
        ),
    ] = None,
    params: Annotated[str, typer.Option(metavar="JSON", help="The tool's parameters, a JSON object.")] = "{}",
    timeout: Annotated[
        float, typer.Option(min=0.001, max=MAX_TIMEOUT_S, metavar="SECONDS", help="How long the call may take.")
    ] = DEFAULT_TIMEOUT_S,
    directory: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Write pictures and other binary content into this directory."),
    ] = None,
) -> None:
    """Call a tool and print its result; at a terminal, its progress. ctrl-C cancels the call."""
    chosen: Options = context.obj
    (given, texts), req_id = read_parameters(params, words or ()), uuid4().hex
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{str(directory)!r}: {error.strerror}", param_hint="--output") from None
    sent: dict[str, str] = {}
    shown = output.working(f"{tool} on {computer}")

    async def query(agent: SmcpAgent) -> Answer:
        listed = await agent.tools(computer) if texts else ()
        schema = next((each.params_schema for each in listed if each.name == tool), {})
        typed_params = given | convert_texts(texts, schema)
        sent.update(req_id=req_id, trace_id=f"{trace_id(chosen.office, chosen.name, req_id):032x}")
        heard = None if shown.disable else partial(output.show_progress, shown)
        result = await agent.call_tool(computer, tool, typed_params, timeout=timeout, req_id=req_id, on_progress=heard)
        found = {**result.raw, "req_id": result.req_id, "trace_id": result.trace_id}
        files: list[str | None] = []
        unsaved = ""
        if directory is not None:
            try:
                files = output.save_binaries(result, directory, tool)
            except (BadReply, OSError) as error:  # the tool has run: its result is shown all the same
                unsaved = getattr(error, "strerror", None) or str(error)
                output.print_failure(f"--output: {str(directory)!r}: {unsaved}")
            found["files"] = [each for each in files if each is not None]
        return Answer(found, lambda: output.print_result(result, files), failed=result.is_error or bool(unsaved))

    ask(chosen, shown, query, ids=sent)


@app.command(epilog=OPTIONS_TOO)
def watch(
    context: typer.Context,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0.001, metavar="SECONDS", help="Stop after SECONDS.")
    ] = None,
) -> None:
    """Print changes in the office as they happen: Computers, tools, desktops, documents, resources, until ctrl-C."""
    run(context.obj, follow(context.obj, seconds), endless=True)
