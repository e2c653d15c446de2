"""The commands that containers run, and the settings that they read."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Final

from smcp_computer.settings import ComputerSettings
from smcp_gateway.settings import GatewaySettings
from smcp_mcp.settings import McpSettings
from smcp_registry.settings import RegistrySettings
from smcp_service.settings import ServiceSettings
from tests.deploy.objects import Object

SETTINGS: Final[Mapping[str, type[ServiceSettings]]] = {
    "smcp-gateway": GatewaySettings,
    "smcp-registry": RegistrySettings,
    "smcp-computer": ComputerSettings,
    "smcp-mcp": McpSettings,
}
"""By command."""

IMAGE_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "smcp-gateway": ("smcp-gateway",),
    "smcp-registry": ("smcp-registry",),
    "smcp-computer": ("smcp-computer", "smcp-computer-demo"),
    "smcp-mcp": ("smcp",),
    "smcp-agent": ("smcp",),
}
"""Which images have a command; see docker/."""

HOME_IN_IMAGES: Final = "/var/lib/smcp"
"""Of Computers; see docker/computer.Dockerfile."""


def settings_of(container: Object) -> type[ServiceSettings] | None:
    """What a container's command reads; None: it is not a service of ours."""
    return SETTINGS.get(command_of(container))


def command_of(container: Object) -> str:
    return str(container.get("command", [""])[0])


def is_command(name: str) -> bool:
    """Whether a package of ours brings a command of that name."""
    return any(entry.name == name for entry in entry_points(group="console_scripts"))


def image_name(container: Object) -> str:
    """Without where it comes from, and without its tag."""
    return str(container["image"]).rpartition("/")[2].partition(":")[0]
