"""An address in a container's settings is a Service's or a pod's, with its port, and the network lets it through."""

import re
from collections.abc import Iterator
from typing import Final

from tests.deploy.objects import WORKLOADS, Container, Manifests, Object, containers, environment, labels
from tests.deploy.policies.network import let_out, may_speak

_ADDRESS: Final = re.compile(r"\b(?:nats|tls|wss?|https?)://([^\s:/,]+):(\d+)")


def addresses(manifests: Manifests) -> list[str]:
    return [
        f"{container.where}: {host}:{port}: {why}"
        for container in containers(manifests)
        for host, port in sorted(set(_told(container, manifests)))
        if (why := _wrong(container, host, port, manifests))
    ]


def _told(container: Container, manifests: Manifests) -> Iterator[tuple[str, int]]:
    texts = (*environment(container, manifests).values(), *container.spec.get("args", []))
    for text in texts:
        for host, port in _ADDRESS.findall(text):
            yield host, int(port)


def _wrong(container: Container, host: str, port: int, manifests: Manifests) -> str:
    *pods, name = host.split(".")
    if manifests.named("Service", name) is None and pods:
        return "" if let_out(manifests, container.workload, name, port) else f"it may not speak to the namespace {name}"
    service = manifests.named("Service", name)
    if service is None:
        return f"there is no Service {name}"
    if port not in [one["port"] for one in service["spec"]["ports"]]:
        return f"the Service {name} has no such port"
    [target] = _behind(service, manifests)
    if pods and pods not in _pods(service, target):
        return f"the Service {name} has no pod {'.'.join(pods)}"
    return "" if may_speak(manifests, container.workload, target, port) else "the network does not let it through"


def _behind(service: Object, manifests: Manifests) -> list[Object]:
    wanted = service["spec"]["selector"].items()
    return [workload for workload in manifests.of(*WORKLOADS) if wanted <= labels(workload).items()]


def _pods(service: Object, target: Object) -> list[list[str]]:
    """The names under a headless Service that pods of a StatefulSet have."""
    if target["kind"] != "StatefulSet" or service["spec"].get("clusterIP") != "None":
        return []
    return [[f"{target['metadata']['name']}-{number}"] for number in range(target["spec"]["replicas"])]
