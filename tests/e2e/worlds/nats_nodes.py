"""The configuration of nats-server in containers: of one node, or of each of a cluster."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from smcp_standalone import nats_server
from smcp_standalone.nats_config_file import Cluster, NatsModel
from smcp_standalone.nats_server import Written

CLIENTS: Final = 4222
MONITORING: Final = 8222
_ROUTES: Final = 6222


def write(model: NatsModel, directory: Path, names: Sequence[str]) -> Written:
    """Write what the node of each name reads into a directory of that name; gives the first one's.

    Every node has the same credentials, and a store of its own.
    """
    inside = {"listen": f"0.0.0.0:{CLIENTS}", "http": f"0.0.0.0:{MONITORING}"}
    first, *others = names
    if not others:
        return nats_server.write(model.model_copy(update=inside), directory / first)
    cluster = Cluster(name="smcp-e2e", listen=f"0.0.0.0:{_ROUTES}", routes=[f"{name}:{_ROUTES}" for name in names])

    def node(name: str) -> Written:
        # by default all addresses are told, that on the network which stays when a part is cut off among them
        own = {**inside, "cluster": cluster, "server_name": name, "client_advertise": f"{name}:{CLIENTS}"}
        return nats_server.write(model.model_copy(update=own), directory / name)

    written = node(first)
    for name in others:
        shutil.copytree(directory / first, directory / name)  # the secrets, which the next run keeps
        node(name)
    return written
