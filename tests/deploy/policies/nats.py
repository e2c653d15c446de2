"""The file of which nats-server's configuration is made fits the pods that are to run with it, and their clients."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from smcp_standalone.nats_config_file import NatsModel, parse_model
from tests.deploy.objects import Manifests, Object, amount, component, containers, environment, pod

_SIZE: Final = re.compile(r"(\d+)([KMGT]?)B?")
_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def nats(manifests: Manifests) -> list[str]:
    model, server = parse_model(manifests.offices), manifests.named("StatefulSet", "smcp-nats")
    if server is None:
        return ["there is no StatefulSet smcp-nats"]
    [container] = pod(server)["containers"]
    return [
        f"offices.yaml: {why}"
        for found in (
            _listens(model, container),
            _store(model, server, container),
            _tls(model, manifests, server, container),
            _cluster(model, server, container),
            _computers(model, manifests),
        )
        for why in found
    ]


def _listens(model: NatsModel, container: Object) -> Iterator[str]:
    offered = {port["name"]: f"0.0.0.0:{port['containerPort']}" for port in container["ports"]}
    said = {"client": model.listen, "monitor": model.http}
    if model.cluster is not None:
        said["cluster"] = model.cluster.listen
    if said != offered:
        yield f"it listens at {said}, and its ports are {offered}"


def _store(model: NatsModel, server: Object, container: Object) -> Iterator[str]:
    kept = PurePosixPath(model.jetstream.store_dir)
    under = [one for one in container["volumeMounts"] if kept.is_relative_to(one["mountPath"])]
    if not under or under[0].get("readOnly"):
        yield f"jetstream.store_dir: {kept} cannot be written"
        return
    room = _room(server, under[0]["name"])
    if model.jetstream.max_file is None or _bytes(model.jetstream.max_file) >= room:
        yield f"jetstream.max_file: {model.jetstream.max_file} does not fit into {room} bytes"


def _room(server: Object, volume: str) -> int:
    """The size of a volume, in bytes."""
    for claim in server["spec"].get("volumeClaimTemplates", []):
        if claim["metadata"]["name"] == volume:
            return int(amount(claim["spec"]["resources"]["requests"]["storage"]))
    [found] = [one for one in pod(server)["volumes"] if one["name"] == volume]
    return int(amount(found["emptyDir"]["sizeLimit"]))


def _bytes(size: str) -> int:
    """As nats-server reads it: 1 KB is 1024 bytes."""
    found = _SIZE.fullmatch(size)
    assert found is not None
    return int(found[1]) << 10 * _POWER[found[2]]


def _tls(model: NatsModel, manifests: Manifests, server: Object, container: Object) -> Iterator[str]:
    for each in containers(manifests):
        for address in environment(each, manifests).get("SMCP_NATS_URL", "").split(","):
            if address and address.startswith("tls://") is not (model.tls is not None):
                yield f"tls: {model.tls}, and {each.where} has the address {address}"
    if model.tls is None:
        return
    given = set(_mounted(server, container))
    for file in (model.tls.cert, model.tls.key, model.tls.ca):
        if file not in given:
            yield f"tls: nothing is mounted that has {file}"


def _mounted(server: Object, container: Object) -> Iterator[str]:
    """The paths of all files from Secrets."""
    volumes = {one["name"]: one for one in pod(server)["volumes"]}
    for mount in container["volumeMounts"]:
        for item in volumes.get(mount["name"], {}).get("secret", {}).get("items", []):
            yield f"{mount['mountPath']}/{item['path']}"


def _cluster(model: NatsModel, server: Object, container: Object) -> Iterator[str]:
    count, name = server["spec"]["replicas"], server["metadata"]["name"]
    if model.cluster is None:
        if count != 1:
            yield f"cluster: is missing, and there are {count} nodes"
        return
    port = model.cluster.listen.rpartition(":")[2]
    wanted = {f"{name}-{number}.{server['spec']['serviceName']}:{port}" for number in range(count)}
    if set(model.cluster.routes) != wanted:
        yield f"cluster.routes: the nodes are {sorted(wanted)}"
    variable = (model.server_name or "").removeprefix("$")
    if model.server_name == variable or variable not in {one["name"] for one in container["env"]}:
        yield f"server_name: {model.server_name} is not a variable that nodes have, each its own"


def _computers(model: NatsModel, manifests: Manifests) -> Iterator[str]:
    """The credential of a Computer on NATS permits the name in its settings."""
    allowed = {(host.office, name) for host in model.computers for name in host.computers}
    for each in containers(manifests):
        if component(each.workload) == "computer" and not each.first:
            told = environment(each, manifests)
            if (told["SMCP_OFFICE"], told["SMCP_NAME"]) not in allowed:
                yield f"computers: nobody may be {told['SMCP_NAME']!r} in {told['SMCP_OFFICE']!r}"
