"""What an autoscaler goes by is there, and what it may do is possible."""

import re
from typing import Final

from tests.deploy.objects import Manifests, Object, pod, title
from tests.deploy.rendering import ROOT

_METRICS: Final = frozenset(
    re.findall(r"^\| `(smcp_\w+)` \| gateway", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
)
"""What a gateway shows at /metrics; that this is true is shown in tests/e2e/scenarios/metrics.py."""


def scaling(manifests: Manifests) -> list[str]:
    return [f"{title(one)}: {why}" for one in manifests.of("HorizontalPodAutoscaler") for why in _wrong(one, manifests)]


def _wrong(scaler: Object, manifests: Manifests) -> list[str]:
    spec = scaler["spec"]
    target = manifests.named(spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"])
    problems = []
    if not 2 <= spec["minReplicas"] < spec["maxReplicas"]:
        problems.append(f"from {spec['minReplicas']} to {spec['maxReplicas']} replicas cannot scale, or one is alone")
    for metric in spec["metrics"]:
        match metric["type"]:
            case "Pods":
                if metric["pods"]["metric"]["name"] not in _METRICS:
                    problems.append(f"gateways show no {metric['pods']['metric']['name']}")
            case "Resource":
                name = metric["resource"]["name"]
                if target is not None and not all(name in one["resources"]["requests"] for one in _containers(target)):
                    problems.append(f"a share of the {name} that nobody asks for")
            case other:
                problems.append(f"nobody gives metrics of type {other}")
    return problems


def _containers(workload: Object) -> list[Object]:
    return list(pod(workload)["containers"])
