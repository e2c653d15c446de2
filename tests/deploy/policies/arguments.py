"""Every command of ours is called with what it takes: its options, its commands, and values that it reads."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from tests.deploy.objects import Manifests, containers
from tests.deploy.programs import command_of

_APPS: Final[Mapping[str, str]] = {
    "smcp-gateway": "smcp_gateway.main",
    "smcp-registry": "smcp_registry.main",
    "smcp-computer": "smcp_computer.main",
    "smcp-mcp": "smcp_mcp.main",
    "smcp-agent": "smcp_agent.cli.main",
}
_WRONG_USAGE: Final[Any] = typer.BadParameter.__mro__[1]
"""Click's UsageError: typer has a click of its own, and shows only this one of its errors."""


def arguments(manifests: Manifests) -> list[str]:
    problems = []
    for container in containers(manifests):
        [name, *rest] = [str(word) for word in container.spec.get("command") or [""]]
        if name in _APPS:
            given = [*rest, *map(str, container.spec.get("args", []))]
            problems += [f"{container.where}: {command_of(container.spec)}: {why}" for why in _wrong(name, given)]
    return problems


def _wrong(name: str, given: list[str]) -> Iterator[str]:
    """Nothing is run: only what the words mean is found out, one command inside the other."""
    command: Any = typer.main.get_command(importlib.import_module(_APPS[name]).app)
    parent = None
    while command is not None:
        try:
            parent = command.make_context(name, given, parent=parent)
            if not hasattr(command, "resolve_command"):
                return
            name, command, given = command.resolve_command(parent, [*parent._protected_args, *parent.args])
        except typer.Exit:
            yield "prints something, and ends"
            return
        except _WRONG_USAGE as error:
            yield error.format_message() or "it is not said what it is to do"
            return
