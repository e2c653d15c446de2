"""`smcp-agent call`."""

from functools import partial
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from smcp_agent.cli.app import Computer, app, complete_tool, parse_directory, parse_limit
from smcp_agent.cli.output import (
    print_failure,
    print_result,
    save_binaries,
    show_progress,
    working,
)
from smcp_agent.cli.parameters import ARGUMENT_FORMS, convert_texts, read_parameters
from smcp_agent.cli.run_command import Answer, Options, ask
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import BadReply
from smcp_agent.tool_calls import DEFAULT_TIMEOUT_S
from smcp_proto.catalog import trace_id


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
