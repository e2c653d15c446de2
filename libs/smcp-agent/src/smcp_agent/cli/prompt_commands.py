"""The commands `smcp-agent prompts` and `smcp-agent prompt get`."""

import asyncio
from typing import Annotated, Any

import typer

from smcp_agent.cli.app import Computer, Server, app, asks, check_pairs
from smcp_agent.cli.output import plain, print_failure, print_table
from smcp_agent.cli.run_command import Answer
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import SmcpError
from smcp_agent.prompts import Prompt, PromptMessages
from smcp_agent.result_formats import as_text
from smcp_agent.results import content_block

group = typer.Typer(help="A prompt of a Computer.", no_args_is_help=True)
app.add_typer(group, name="prompt")


@asks("asking for prompts")
async def prompts(
    agent: SmcpAgent,
    computer: Annotated[
        str | None, typer.Argument(metavar="[COMPUTER]", help="Only this one (default: all of the office).")
    ] = None,
) -> Answer:
    """The prompts of the Computers; `prompt get` fills one in."""
    names = agent.computers() if computer is None else [computer]
    found: list[dict[str, Any]] = []
    refused: dict[str, SmcpError] = {}

    async def of(name: str) -> list[Prompt]:
        return [each async for each in agent.iter_prompts(name)]

    for name, listed in zip(names, await asyncio.gather(*map(of, names), return_exceptions=True), strict=True):
        if isinstance(listed, SmcpError) and computer is None:
            refused[name] = listed
        elif isinstance(listed, BaseException):
            raise listed
        else:
            found += [{"computer": name, **each} for each in listed]
    errors = [{"computer": name, "error": error.body().model_dump()} for name, error in refused.items()]
    return Answer({"prompts": found, "errors": errors}, lambda: _print_prompts(found, refused))


def _print_prompts(prompts: list[dict[str, Any]], refused: dict[str, SmcpError]) -> None:
    rows = []
    for each in prompts:
        arguments = "\n".join(
            f"{argument['name']}{'*' if argument.get('required') else ''}" for argument in each.get("arguments") or ()
        )
        about = each.get("description") or each.get("title") or ""
        rows.append((each["name"], each["computer"], str(each.get("serverId", "")), arguments, about))
    print_table("Prompt", {"Computer": 8, "Server": 8, "Arguments": 10, "Description": 20}, rows, "No prompts.")
    for name, error in refused.items():
        print_failure(f"{name}: error {int(error.code)}: {error.message}")


@asks("filling in {name} of {computer}", name="get", group=group)
async def get_prompt(
    agent: SmcpAgent,
    computer: Computer,
    name: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt's name, as `prompts` lists it.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT=VALUE]...", callback=check_pairs, help="Its arguments.")
    ] = None,
    server: Server = None,
) -> Answer:
    """Fill in a prompt of a Computer: the messages for a model."""
    given = {key: value for key, _, value in (each.partition("=") for each in arguments or ())}
    found = await agent.get_prompt(computer, name, given, server=server)
    return Answer({"computer": computer, "prompt": name, **found}, lambda: _print_messages(found))


def _print_messages(prompt: PromptMessages) -> None:
    for number, message in enumerate(prompt["messages"]):
        if number:
            typer.echo()
        typer.secho(plain(f"{message['role']}:"), bold=True)
        typer.echo(plain(as_text(content_block(message["content"]))))
