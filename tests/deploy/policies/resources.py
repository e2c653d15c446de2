"""Every container says what it needs and what it may take, and the first is not above the second."""

from decimal import Decimal
from typing import Final

from tests.deploy.objects import Manifests, containers

_UNITS: Final = {
    "": Decimal(1), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
}  # fmt: skip


def amount(text: str) -> Decimal:
    """What a quantity of Kubernetes means, in CPUs or bytes."""
    number = text.rstrip("".join({letter for unit in _UNITS for letter in unit}))
    return Decimal(number) * _UNITS[text[len(number) :]]


def resources(manifests: Manifests) -> list[str]:
    problems = []
    for container in containers(manifests):
        given = container.spec.get("resources", {})
        for what in ("cpu", "memory"):
            request, limit = given.get("requests", {}).get(what), given.get("limits", {}).get(what)
            if request is None or limit is None:
                problems.append(f"{container.where}: does not say how much {what} it needs, and may take")
            elif amount(str(request)) > amount(str(limit)):
                problems.append(f"{container.where}: needs more {what} ({request}) than it may take ({limit})")
    return problems
