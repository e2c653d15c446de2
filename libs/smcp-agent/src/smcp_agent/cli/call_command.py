"""`smcp-agent call`: calls the tool, and asks the user what the tool or its Computer elicits."""

import asyncio
import os
import select
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from uuid import uuid4

import typer
from rich.progress import Progress

from smcp_agent.cli.app import Computer, app, complete_tool, parse_directory, parse_limit
from smcp_agent.cli.output import (
    plain,
    print_failure,
    print_hint,
    print_result,
    save_binaries,
    show_progress,
    working,
)
from smcp_agent.cli.parameters import ARGUMENT_FORMS, convert_texts, read_parameters, unknown_key_warnings
from smcp_agent.cli.run_command import Answer, Options, ask, no_tools
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import BadReply
from smcp_agent.results import InputAnswer, InputRequest
from smcp_agent.tool_calls import DEFAULT_TIMEOUT_S
from smcp_proto.catalog import trace_id
from smcp_proto.elicitation_dialogue import ACTIONS, ask_user

POLL_S: Final = 0.1
"""How often an open elicitation looks for its answer: a thread that reads could not be cancelled."""
MAX_LINE: Final = 4096
"""Bytes of a line, as the kernel limits them."""

T = TypeVar("T")


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
    """Call a tool and print its result. ctrl-C cancels the call.

    At a terminal, it shows the tool's progress, and asks what the tool or its Computer asks its user.
    """
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
        for warning in unknown_key_warnings(texts, schema):
            print_hint(warning, shown.console)
        typed_params = given | convert_texts(texts, schema)
        heard = None if shown.disable else partial(show_progress, shown)
        asked = UserTerminal(shown).answer if can_ask_user() else None
        result = await agent.call_tool(
            computer, tool, typed_params, timeout=timeout, req_id=req_id, on_progress=heard, on_input=asked
        )
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
        why = await no_tools(agent, computer) if result.is_error else ""
        return Answer(found, lambda: print_result(result, why, files), failed=result.is_error or bool(unsaved))

    ask(chosen, shown, query, ids=ids)


def can_ask_user() -> bool:
    """Whether somebody can be asked. On Windows nobody is: there, a line cannot be waited for without a thread."""
    return sys.platform != "win32" and sys.stdin.isatty() and sys.stderr.isatty()


class UserTerminal:
    """Answers elicitations (`on_input`); `shown` is hidden meanwhile. Ctrl-D dismisses an elicitation."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._given: dict[str, Mapping[str, Any]] = {}
        """The contents of the last answers, by elicitation."""

    async def answer(self, request: InputRequest) -> InputAnswer:
        self._shown.stop()
        try:
            if request.problem is not None:
                typer.echo(plain(f"The last answer was refused: {request.problem}"), err=True)
            if request.is_approval:
                action = await self.ask(plain(request.message), "[y/N] ", {**ACTIONS, "": "decline"})
                return request.accept() if action == "accept" else request.decline()
            text = plain(f"The tool {request.tool!r} of {request.computer!r} asks: ")
            kept = {} if request.refused_field is None else dict(self._given.get(request.key, {}))
            kept.pop(str(request.refused_field), None)
            said = await ask_user(self, text, request.raw, kept=kept)
            self._given[request.key] = said.get("content", {})
            return InputAnswer(said["action"], said.get("content"))
        except EOFError:
            return request.cancel()
        finally:
            self._shown.start()

    async def ask(self, text: str, prompt: str, answers: Mapping[str, T]) -> T:
        """What the typed word stands for."""
        line = await self.line(text, prompt)
        while (word := line.strip().casefold()) not in answers:
            line = await self.line(f"Please say: {', '.join(filter(None, answers))}", prompt)
        return answers[word]

    async def line(self, text: str, prompt: str) -> str:
        """The next line; what was typed before is no answer to this question. Raises EOFError."""
        import termios  # noqa: PLC0415 -- Windows has none

        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        typer.echo(f"{text}\n{prompt}", nl=False, err=True)
        while not select.select([sys.stdin], [], [], 0)[0]:  # noqa: ASYNC110 -- see POLL_S
            await asyncio.sleep(POLL_S)
        read = os.read(sys.stdin.fileno(), MAX_LINE)
        if not read:
            raise EOFError
        return read.decode(errors="replace").rstrip("\r\n")
