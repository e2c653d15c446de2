"""`smcp-agent`: be an Agent from the shell.

Exit codes: 0 done, 1 the tool or the call failed, 2 wrong usage, 130 ctrl-C, 143 SIGTERM, 129 SIGHUP (of `watch` 0).
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from smcp_agent.cli.app import (
    AnyComputer,
    Computer,
    OnlyServer,
    Server,
    asks,
    check_pairs,
    complete_tool,
    parse_directory,
    parse_limit,
)
from smcp_agent.cli.app import app as app
from smcp_agent.cli.mcp_command import app as mcp_app
from smcp_agent.cli.output import (
    print_completion,
    print_contents,
    print_desktop,
    print_documents,
    print_failure,
    print_json,
    print_resources,
    print_result,
    print_sessions,
    print_statuses,
    print_templates,
    print_tools,
    save_binaries,
    show_progress,
    statuses_json,
    working,
)
from smcp_agent.cli.parameters import ARGUMENT_FORMS, convert_texts, read_parameters
from smcp_agent.cli.run_command import FAILED, Answer, Options, ask, follow, no_tools, run
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import BadReply
from smcp_agent.tool_calls import DEFAULT_TIMEOUT_S
from smcp_proto.catalog import trace_id
from smcp_proto.schemas import DEFAULT_LIMIT, DEFAULT_OFFSET, MAX_LIMIT

app.add_typer(mcp_app, name="mcp")


def main() -> int:
    """Run the command line; its exit code."""
    try:
        code: int | None = app(standalone_mode=True)
    except OSError as error:
        if error.filename is not None:
            raise
        typer.echo(f"error: standard output: {error.strerror}", err=True)  # a full disk; typer ends for a closed pipe
        return FAILED
    return code or 0


@asks("asking who is in the office", name="list")
async def list_room(agent: SmcpAgent) -> Answer:
    """Who is in the office."""
    sessions = await agent.list_room()
    found = [each.model_dump(exclude_unset=True) for each in sessions]
    return Answer({"office_id": agent.office, "sessions": found}, lambda: print_sessions(sessions, agent.office))


@asks("asking {computer} for its tools")
async def tools(agent: SmcpAgent, computer: Computer) -> Answer:
    """The tools of a Computer."""
    listed = await agent.get_tools(computer)
    found = [each.model_dump(exclude_unset=True) for each in listed]
    why = "" if listed else await no_tools(agent, computer)
    shown = {"computer": computer, "tools": found, **({"why": why} if why else {})}
    return Answer(shown, lambda: print_tools(listed, why))


@asks("asking for the states of MCP servers")
async def status(agent: SmcpAgent, computer: AnyComputer = None) -> Answer:
    """How the MCP servers of the Computers are, and why one has no tools."""
    names = agent.computers() if computer is None else [computer]
    found = await asyncio.gather(*map(agent.get_status, names), return_exceptions=True)
    if computer is not None and isinstance(found[0], BaseException):
        raise found[0]
    return Answer({"computers": statuses_json(names, found)}, lambda: print_statuses(names, found))


@asks("asking {computer} for its configuration")
async def config(agent: SmcpAgent, computer: Computer) -> Answer:
    """The configuration of a Computer, without its secrets."""
    found = (await agent.get_config(computer)).model_dump(exclude_unset=True)
    return Answer({"computer": computer, **found}, lambda: print_json(found))


@asks("asking {computer} for its desktop")
async def desktop(
    agent: SmcpAgent,
    computer: Computer,
    size: Annotated[int | None, typer.Option(min=0, metavar="N", help="At most so many windows.")] = None,
    window: Annotated[str | None, typer.Option(metavar="URI", help="Only this window.")] = None,
) -> Answer:
    """What the windows of a Computer show."""
    shown = await agent.get_desktop(computer, size=size, window=window)
    return Answer({"computer": computer, "desktops": shown["desktops"]}, lambda: print_desktop(shown))


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
    """The documents of a Computer."""
    page = await agent.get_finder(computer, keywords=keyword or None, file_type=file_type, offset=offset, limit=limit)
    found = {"computer": computer, **{name: value for name, value in page.items() if name != "req_id"}}
    return Answer(found, lambda: print_documents(page, offset))


@asks("asking {computer} for its resources")
async def resources(agent: SmcpAgent, computer: Computer, server: OnlyServer = None) -> Answer:
    """The resources of a Computer."""
    found = [each async for each in agent.iter_resources(computer, server=server)]
    return Answer({"computer": computer, "resources": found}, lambda: print_resources(found))


@asks("asking {computer} for its templates")
async def templates(agent: SmcpAgent, computer: Computer, server: OnlyServer = None) -> Answer:
    """The templates of resources of a Computer; `complete` finds values for their arguments."""
    found = [each async for each in agent.iter_resource_templates(computer, server=server)]
    return Answer({"computer": computer, "resourceTemplates": found}, lambda: print_templates(found))


@asks("asking {computer} for values")
async def complete(
    agent: SmcpAgent,
    computer: Computer,
    template: Annotated[str, typer.Argument(metavar="TEMPLATE", help="A URI template, as `templates` lists it.")],
    argument: Annotated[str, typer.Argument(metavar="ARGUMENT", help="One of its arguments.")],
    value: Annotated[str, typer.Argument(metavar="[BEGINNING]", help="What the value begins with.")] = "",
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARGUMENT=VALUE", callback=check_pairs, help="An argument that is chosen already; repeatable."
        ),
    ] = None,
    server: Server = None,
) -> Answer:
    """What an argument of a template may be."""
    others = {name: given for name, _, given in (each.partition("=") for each in chosen or ())}
    found = await agent.complete(computer, template, argument, value, chosen=others, server=server)
    return Answer({"computer": computer, "completion": found}, lambda: print_completion(found))


@asks("reading {uri} of {computer}")
async def read(
    agent: SmcpAgent,
    computer: Computer,
    uri: Annotated[str, typer.Argument(metavar="URI", help="Of a document, a window or another resource.")],
    server: Server = None,
) -> Answer:
    """Read a resource of a Computer: a document, a page of it, …"""
    contents = await agent.read_contents(computer, uri, server=server)
    return Answer({"computer": computer, "uri": uri, **contents.raw}, lambda: print_contents(contents))


@app.command()
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
            metavar=f"[{ARGUMENT_FORMS}]...",
            help="The tool's parameters, converted by its schema. KEY=@FILE reads one value from a file; "
            "@FILE reads a JSON object of parameters from a file, `-` from standard input.",
        ),
    ] = None,
    params: Annotated[str, typer.Option(metavar="JSON", help="The tool's parameters, a JSON object.")] = "{}",
    timeout: Annotated[
        float, typer.Option(parser=parse_limit, metavar="SECONDS", help="How long the call may take.")
    ] = DEFAULT_TIMEOUT_S,
    output: Annotated[
        Path | None,
        typer.Option(
            parser=parse_directory, metavar="DIR", help="Write pictures and other binary content into this directory."
        ),
    ] = None,
) -> None:
    """Call a tool and print its result; at a terminal, its progress. ctrl-C cancels the call."""
    chosen: Options = context.obj
    (given, texts), req_id = read_parameters(params, words or ()), uuid4().hex
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{str(output)!r}: {error.strerror}", param_hint="--output") from None
    ids = {"req_id": req_id, "trace_id": f"{trace_id(chosen.office, chosen.name, req_id):032x}"}

    shown = working(f"{tool} on {computer}")

    async def query(agent: SmcpAgent) -> Answer:
        listed = await agent.tools(computer) if texts else ()
        schema = next((each.params_schema for each in listed if each.name == tool), {})
        typed_params = given | convert_texts(texts, schema)
        heard = None if shown.disable else partial(show_progress, shown)
        result = await agent.call_tool(computer, tool, typed_params, timeout=timeout, req_id=req_id, on_progress=heard)
        found = {**result.raw, "req_id": result.req_id, "trace_id": result.trace_id}
        files: list[str | None] = []
        unsaved = ""
        if output is not None:
            try:
                files = save_binaries(result, output, tool)
            except (BadReply, OSError) as error:  # the tool has run: its result is shown all the same
                unsaved = getattr(error, "strerror", None) or str(error)
                print_failure(f"--output: {str(output)!r}: {unsaved}")
            found["files"] = [each for each in files if each is not None]
        return Answer(found, lambda: print_result(result, files), failed=result.is_error or bool(unsaved))

    ask(chosen, shown, query, ids=ids)


@app.command()
def watch(
    context: typer.Context,
    seconds: Annotated[
        float | None, typer.Option("--for", parser=parse_limit, metavar="SECONDS", help="End after so many seconds.")
    ] = None,
) -> None:
    """What changes in the office, as it comes: Computers, tools, desktops, documents, resources. ctrl-C ends it."""
    run(context.obj, follow(context.obj, seconds), endless=True)
