"""Kubernetes objects as they are rendered, and what is asked of them again and again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

Object = dict[str, Any]

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")
COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True)
class Manifests:
    """What one `kubectl apply` would send, and which Secrets come from elsewhere: their keys, by name."""

    objects: list[Object]
    secrets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    offices: str = ""
    """The YAML of which NATS's configuration is made."""

    def of(self, *kinds: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] in kinds]

    def named(self, kind: str, name: str) -> Object | None:
        return next((each for each in self.of(kind) if each["metadata"]["name"] == name), None)

    def config(self, name: str) -> dict[str, str]:
        """What a ConfigMap holds; nothing where it is not there."""
        found = self.named("ConfigMap", name)
        return {} if found is None else dict(found["data"])


@dataclass(frozen=True)
class Container:
    """A container, with the pod that it is in."""

    workload: Object
    spec: Object
    first: bool
    """Whether it runs before the others and ends."""

    @property
    def where(self) -> str:
        return f"{title(self.workload)}: {self.spec['name']}"


def title(thing: Object) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


def pod(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def labels(workload: Object) -> dict[str, str]:
    """Of a workload's pods."""
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def containers(manifests: Manifests) -> Iterator[Container]:
    for workload in manifests.of(*WORKLOADS):
        for spec in pod(workload).get("initContainers", []):
            yield Container(workload, spec, first=True)
        for spec in pod(workload)["containers"]:
            yield Container(workload, spec, first=False)


def component(workload: Object) -> str:
    return labels(workload).get(COMPONENT, "")


def matches(selector: Mapping[str, Any], of_pod: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels; only `matchLabels` is used here."""
    return all(of_pod.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def environment(container: Container, manifests: Manifests) -> dict[str, str]:
    """The variables of a container; those that are known in the cluster only stand as a word."""
    found: dict[str, str] = {}
    for source in container.spec.get("envFrom", []):
        found |= manifests.config(source["configMapRef"]["name"])
    for entry in container.spec.get("env", []):
        found[entry["name"]] = str(entry["value"]) if "value" in entry else "known-in-the-cluster"
    return found


_UNITS: Final = {
    "": Decimal(1), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
}  # fmt: skip


def amount(text: str) -> Decimal:
    """What a quantity of Kubernetes means, in CPUs or bytes."""
    number = text.rstrip("".join({letter for unit in _UNITS for letter in unit}))
    return Decimal(number) * _UNITS[text[len(number) :]]
