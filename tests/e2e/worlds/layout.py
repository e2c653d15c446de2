"""Who lives in every world: three native Computers in two offices."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smcp_testing.mcp_servers import configs
from tests.e2e.worlds.world import ELSEWHERE, LAB


@dataclass(frozen=True)
class Place:
    """A Computer, its credential and the file that its `append` tool writes."""

    credential: str
    office: str
    name: str
    servers: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """MCP servers beside the toolbox, as they stand in a configuration file."""
    toolbox: bool = True
    gateway: str | None = None
    """The credential of the one that it is connected to. None: it is connected to NATS."""

    def ran(self, directory: Path) -> Path:
        return directory / f"{self.credential}.ran"

    def config(self, directory: Path) -> Path:
        """Write the Computer's configuration: the toolbox of the tests, if it has one, and its own servers."""
        toolbox = {"toolbox": configs.stdio(log=self.ran(directory))} if self.toolbox else {}
        path = directory / f"{self.credential}.json"
        path.write_text(json.dumps({"servers": {**toolbox, **self.servers}}), encoding="utf-8")
        return path


ALPHA = Place("host-alpha", LAB, "alpha")
BETA = Place("host-beta", LAB, "beta")
OTHER_ALPHA = Place("host-other", ELSEWHERE, "alpha")
PLACES = (ALPHA, BETA, OTHER_ALPHA)


def connected(nats_url: str, creds: Path, gateway_url: str | None = None) -> dict[str, str]:
    """The settings of a part that reaches a gateway, or NATS where none is given."""
    if gateway_url is not None:
        return {"SMCP_GATEWAY_URL": gateway_url}
    return {"SMCP_NATS_URL": nats_url, "SMCP_NATS_CREDS": str(creds)}


def command(name: str) -> str:
    """An installed command of ours."""
    return str(Path(sys.executable).parent / name)
