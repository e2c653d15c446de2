"""Nothing is written otherwise than the API server keeps it, where `kubectl apply` compares lists as a whole.

Else a second `kubectl apply` would find something to change.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from tests.deploy.objects import Manifests, title

_QUANTITIES: Final = ("cpu", "memory", "storage", "sizeLimit", "averageValue")
_NOTHING_IS_SAID: Final = ("podSelector", "emptyDir")
"""Fields in which an empty object means something."""
_FALSE_IS_DROPPED: Final = ("hostNetwork", "hostPID", "hostIPC", "readOnly", "stdin", "tty", "publishNotReadyAddresses")
_ZERO_IS_DROPPED: Final = ("minReadySeconds", "initialDelaySeconds")
_CANONICAL: Final = re.compile(r"[1-9][0-9]*(m|[KMGT]i)?")


def canonical(manifests: Manifests) -> list[str]:
    problems = []
    for thing in manifests.objects:
        problems += [f"{title(thing)}: {why}" for why in _walk(thing, "")]
        if thing["kind"] == "Job" and "ttlSecondsAfterFinished" in thing["spec"]:
            problems.append(f"{title(thing)}: is gone when it is applied again, and would run again")
        if thing["kind"] == "NetworkPolicy" and "policyTypes" not in thing["spec"]:
            problems.append(f"{title(thing)}: does not say policyTypes")
        for claim in thing["spec"].get("volumeClaimTemplates", []) if thing["kind"] == "StatefulSet" else ():
            if not {"apiVersion", "kind", "status"} <= set(claim) or claim["spec"].get("volumeMode") is None:
                problems.append(f"{title(thing)}: the API server completes {claim['metadata']['name']}")
    return problems


def _walk(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inside in value.items():
            if name == "ports" and any("protocol" not in port for port in inside):
                yield f"{name}: a port without its protocol"
            if name == "creationTimestamp" or inside is None or _is_dropped(name, inside):
                yield f"{name}: is dropped"
            yield from _walk(inside, name)
    elif isinstance(value, list):
        for inside in value:
            yield from _walk(inside, key)
    elif key in _QUANTITIES:
        if not isinstance(value, str):
            yield f"{key}: {value} is no text"
        elif not _CANONICAL.fullmatch(value) or not _smallest(value):
            yield f"{key}: {value} would be kept otherwise"


def _is_dropped(name: str, value: Any) -> bool:
    """What is the same as not to be there is not kept."""
    if (name in _FALSE_IS_DROPPED and value is False) or (name in _ZERO_IS_DROPPED and value == 0):
        return True
    return value in ({}, []) and name not in _NOTHING_IS_SAID


def _smallest(quantity: str) -> bool:
    number = int(re.match(r"\d+", quantity)[0])  # type: ignore[index]
    if quantity.endswith("m"):
        return number % 1000 != 0
    return not quantity.endswith("i") or number % 1024 != 0
