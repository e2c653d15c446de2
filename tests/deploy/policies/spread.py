"""What there is several of is spread over machines, and a machine can be emptied without all of it going."""

from collections.abc import Iterator
from typing import Final

from tests.deploy.objects import Manifests, Object, labels, matches, pod, title

_MACHINE: Final = "kubernetes.io/hostname"


def spread(manifests: Manifests) -> list[str]:
    problems = [
        f"{title(budget)}: nobody may ever be moved"
        for budget in manifests.of("PodDisruptionBudget")
        if not budget["spec"].get("maxUnavailable")
    ]
    for workload in _several(manifests):
        budgets = [
            each["metadata"]["name"]
            for each in manifests.of("PodDisruptionBudget")
            if matches(each["spec"]["selector"], labels(workload))
        ]
        if budgets != [workload["metadata"]["name"]]:
            problems.append(f"{title(workload)}: its PodDisruptionBudget is {budgets}")
        if not any(key == _MACHINE for key in _kept_apart_by(workload)):
            problems.append(f"{title(workload)}: all of it may be on one machine")
    return problems


def _several(manifests: Manifests) -> Iterator[Object]:
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in manifests.of("HorizontalPodAutoscaler")}
    for workload in manifests.of("Deployment", "StatefulSet"):
        if workload["metadata"]["name"] in scaled or workload["spec"].get("replicas", 1) > 1:
            yield workload


def _kept_apart_by(workload: Object) -> list[str]:
    anti = pod(workload).get("affinity", {}).get("podAntiAffinity", {})
    apart = anti.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return [one["topologyKey"] for one in (*pod(workload).get("topologySpreadConstraints", []), *apart)]
