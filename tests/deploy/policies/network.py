"""The policies of the network let through the hops of the design, and nothing else.

What is not ours is in `outside`.
"""

from collections.abc import Iterator
from typing import Final

from tests.deploy.objects import WORKLOADS, Manifests, Object, component, labels, matches, pod, title

HOPS: Final = frozenset(
    {
        ("gateway", "nats", 4222),
        ("registry", "nats", 4222),
        ("computer", "nats", 4222),
        ("nats", "nats", 6222),
        ("agent", "gateway", 8000),
        ("computer-nodes", "gateway", 8000),
        ("mcp", "gateway", 8000),
        ("mcp", "mcp", 8001),
        ("gateway", "jaeger", 4318),
        ("registry", "jaeger", 4318),
        ("computer", "jaeger", 4318),
    }
)
"""Who speaks to whom, and on which port; a Computer that comes by the gateway is `computer-nodes`."""


def network(manifests: Manifests) -> list[str]:
    workloads = manifests.of(*WORKLOADS)
    problems = [
        f"{title(each)}: everybody may speak to it, or it to everybody"
        for each in workloads
        if not _closed(manifests, each)
    ]
    for source in workloads:
        for target in workloads:
            for port in _ports(target):
                hop = (component(source), component(target), port)
                allowed = [_may(manifests, source, target, port, way) for way in ("egress", "ingress")]
                if all(allowed) and hop not in HOPS:
                    problems.append(f"{hop[0]} may speak to {hop[1]} on {port}, and has no business there")
                elif not all(allowed) and hop in HOPS:
                    problems.append(f"{hop[0]} has to speak to {hop[1]} on {port}, and may not")
                elif any(allowed) and hop not in HOPS:
                    problems.append(f"one side lets {hop[0]} speak to {hop[1]} on {port}")
    return problems


def may_speak(manifests: Manifests, source: Object, target: Object, port: int) -> bool:
    """Whether one's pods may send to the other's on that port, and these take it."""
    return all(_may(manifests, source, target, port, way) for way in ("egress", "ingress"))


def let_out(manifests: Manifests, workload: Object, namespace: str, port: int) -> bool:
    """Whether its pods may send to another namespace on that port."""
    wanted = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return any(port in numbers and wanted in peers for peers, numbers in rules(manifests, workload, "egress"))


def _closed(manifests: Manifests, workload: Object) -> bool:
    types = {
        kind
        for policy in manifests.of("NetworkPolicy")
        if matches(policy["spec"]["podSelector"], labels(workload))
        for kind in policy["spec"]["policyTypes"]
    }
    return types == {"Ingress", "Egress"}


def _ports(workload: Object) -> list[int]:
    return [port["containerPort"] for each in pod(workload)["containers"] for port in each.get("ports", [])]


def rules(manifests: Manifests, workload: Object, way: str) -> Iterator[tuple[list[Object], list[int]]]:
    """Of each rule that means the workload's pods: the peers (none: all), and the ports (none: all, as 0)."""
    for policy in manifests.of("NetworkPolicy"):
        if not matches(policy["spec"]["podSelector"], labels(workload)):
            continue
        for rule in policy["spec"].get(way, []):
            numbers = [port["port"] for port in rule.get("ports", [])] or [0]
            yield rule.get("from" if way == "ingress" else "to", []), numbers


def _may(manifests: Manifests, source: Object, target: Object, port: int, way: str) -> bool:
    whose, other = (source, target) if way == "egress" else (target, source)
    return any(
        (port in numbers or numbers == [0])
        and (not peers or any("podSelector" in peer and matches(peer["podSelector"], labels(other)) for peer in peers))
        for peers, numbers in rules(manifests, whose, way)
    )
