"""What is wrong with the words of commands, and with the configuration of Computers."""

import json
from typing import Any, Final

from tests.deploy.breaking import Break, Broken, container, found, main, put, told, without
from tests.deploy.objects import Manifests


def computer(m: Manifests) -> Any:
    return main(found(m, "Deployment", "smcp-computer"))


def server(kind: str, *inputs: dict[str, Any], **parameters: Any) -> Break:
    """The Computer has this one."""
    config = {"servers": {"one": {"type": kind, "server_parameters": parameters}}, "inputs": list(inputs)}
    return put(lambda m: told(m, "smcp-computer-servers"), "computer.json", json.dumps(config))


URL: Final = "https://crm.example.com/mcp"
TOKEN: Final = {"id": "crm", "type": "promptString", "description": "token", "password": True, "default": "hunter2"}

BROKEN_COMMANDS: list[Broken] = [
    ("arguments", "No such option: --insecured", put(container, "args", ["--insecured"])),
    ("arguments", "Invalid value for '--port'", put(container, "args", ["--port", "http"])),
    ("arguments", "Got unexpected extra argument", put(container, "args", ["serve"])),
    ("arguments", "prints something, and ends", put(container, "args", ["--version"])),
    ("arguments", "No such command 'ran'", put(computer, "args", ["ran"])),
    ("arguments", "it is not said what it is to do", without(computer, "args")),
    ("servers", "not JSON", put(lambda m: told(m, "smcp-computer-servers"), "computer.json", "{")),
    ("servers", "servers.one.server_parameters.command", server("stdio", args=["x"])),
    ("servers", "servers.one.server_parameters.comand", server("stdio", command="x", comand="y")),
    ("servers", "env.CRM_TOKEN stands in the manifest", server("stdio", command="x", env={"CRM_TOKEN": "hunter2"})),
    ("servers", "args.1 looks like a secret", server("stdio", command="x", args=["--token", "hunter2"])),
    ("servers", "headers.Crm stands in the manifest", server("streamable", url=URL, headers={"Crm": "hunter2"})),
    (
        "servers",
        "the default of crm stands in the manifest",
        server("stdio", TOKEN, command="x", args=["${input:crm}"]),
    ),
]
