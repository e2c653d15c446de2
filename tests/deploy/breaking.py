"""How manifests are broken, one thing at a time."""

from collections.abc import Callable
from typing import Any

from tests.deploy.objects import Manifests, Object, pod

Break = Callable[[Manifests], object]
Broken = tuple[str, str, Break]
"""Which policy rejects it, what it says, and how it is broken."""


def found(manifests: Manifests, kind: str, name: str) -> Object:
    thing = manifests.named(kind, name)
    assert thing is not None
    return thing


def gateway(manifests: Manifests) -> Object:
    return found(manifests, "Deployment", "smcp-gateway")


def main(workload: Object) -> Object:
    [container] = pod(workload)["containers"]
    assert isinstance(container, dict)
    return container


def told(manifests: Manifests, name: str) -> dict[str, str]:
    """The ConfigMap that begins with that name, and goes on with a hash."""
    [config] = [one for one in manifests.of("ConfigMap") if one["metadata"]["name"].rpartition("-")[0] == name]
    data = config["data"]
    assert isinstance(data, dict)
    return data


def put(where: Callable[[Manifests], Any], key: Any, value: Any) -> Break:
    def change(manifests: Manifests) -> None:
        where(manifests)[key] = value

    return change


def without(where: Callable[[Manifests], Any], key: Any) -> Break:
    def change(manifests: Manifests) -> None:
        del where(manifests)[key]

    return change


def away(kind: str, name: str) -> Break:
    return lambda manifests: manifests.objects.remove(found(manifests, kind, name))


def policy(manifests: Manifests, name: str) -> Any:
    return found(manifests, "NetworkPolicy", name)["spec"]


def container(m: Manifests) -> Any:
    return main(gateway(m))


def gateway_pod(m: Manifests) -> Any:
    return pod(gateway(m))


def spec(m: Manifests) -> Any:
    return gateway(m)["spec"]


def service(m: Manifests) -> Any:
    return found(m, "Service", "smcp-gateway")["spec"]


def common(m: Manifests) -> Any:
    return told(m, "smcp")


def of_gateway(m: Manifests) -> Any:
    return told(m, "smcp-gateway")


def of_computer(m: Manifests) -> Any:
    return told(m, "smcp-computer")


def nats(m: Manifests) -> Any:
    return found(m, "StatefulSet", "smcp-nats")


def both(*breaks: Break) -> Break:
    def change(manifests: Manifests) -> None:
        for each in breaks:
            each(manifests)

    return change


def only(*kept: str) -> Break:
    def change(manifests: Manifests) -> None:
        for each in manifests.of("Deployment", "StatefulSet", "DaemonSet"):
            if each["metadata"]["name"] not in kept:
                manifests.objects.remove(each)

    return change


def let(whose: str, way: str, other: str, port: int) -> Break:
    """Let a component's pods send to another's (`egress`), or take from them (`ingress`)."""

    def selecting(component: str) -> Object:
        return {"matchLabels": {"app.kubernetes.io/component": component}}

    def change(manifests: Manifests) -> None:
        peers = [{"podSelector": selecting(other)}]
        rule = {"from" if way == "ingress" else "to": peers, "ports": [{"port": port, "protocol": "TCP"}]}
        spec = {"podSelector": selecting(whose), "policyTypes": [way.capitalize()], way: [rule]}
        manifests.objects.append({"kind": "NetworkPolicy", "metadata": {"name": "added"}, "spec": spec})

    return change
