"""Names and labels are as the API server takes them (RFC 1123, and what Kubernetes says of labels and ports)."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tests.deploy.objects import WORKLOADS, Manifests, Object, containers, labels, title

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_KEY: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_PORT: Final = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_DNS: Final = ("Service", "Namespace", *WORKLOADS)
"""Their names become hosts and labels of pods."""


def names(manifests: Manifests) -> list[str]:
    problems = []
    seen: set[tuple[str, str]] = set()
    for thing in manifests.objects:
        name, kind = thing["metadata"]["name"], thing["kind"]
        if not (_LABEL if kind in _DNS else _SUBDOMAIN).fullmatch(name):
            problems.append(f"{title(thing)}: is no legal name")
        if (kind, name) in seen:
            problems.append(f"{title(thing)}: stands twice")
        seen.add((kind, name))
        problems += [f"{title(thing)}: {why}" for why in _labels(thing)]
    for container in containers(manifests):
        if not _LABEL.fullmatch(container.spec["name"]):
            problems.append(f"{container.where}: is no legal name")
        problems += [
            f"{container.where}: the port's name {port['name']!r} is not legal"
            for port in container.spec.get("ports", [])
            if not _PORT.fullmatch(port["name"])
        ]
    return problems


def _labels(thing: Object) -> Iterator[str]:
    of_pods: Mapping[str, str] = labels(thing) if thing["kind"] in WORKLOADS else {}
    for key, value in (*thing["metadata"].get("labels", {}).items(), *of_pods.items()):
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            yield f"the label {key}={value} is not legal"
