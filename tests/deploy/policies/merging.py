"""Lists that Kubernetes merges by a key have each key once: else a second `kubectl apply` changes or loses one."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.deploy.objects import Manifests, title

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Of each list, which fields are the key."""
_OF_CONTAINERS: Final = ("containerPort", "protocol")
_OF_SERVICES: Final = ("port", "protocol")


def merging(manifests: Manifests) -> list[str]:
    return [f"{title(thing)}: {why}" for thing in manifests.objects for why in _walk(thing)]


def _walk(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inside in value.items():
            if isinstance(inside, list) and (key := _key_of(name, inside)):
                counted = Counter(tuple(one.get(field) for field in key) for one in inside)
                yield from (f"{name}: {_said(each)} stands twice" for each, count in counted.items() if count > 1)
            yield from _walk(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from _walk(inside)


def _key_of(name: str, inside: list[Any]) -> tuple[str, ...] | None:
    if not all(isinstance(one, dict) for one in inside):
        return None
    if name == "ports":
        return _OF_CONTAINERS if any("containerPort" in one for one in inside) else _OF_SERVICES
    return _KEYS.get(name)


def _said(key: tuple[Any, ...]) -> str:
    return " ".join(map(str, key))
