"""With what is not ours pods speak where they have to, and nowhere else: DNS, clients, Prometheus, the API server."""

from collections.abc import Iterator
from typing import Final

from tests.deploy.objects import (
    WORKLOADS,
    Manifests,
    Object,
    component,
    containers,
    environment,
    labels,
    matches,
    pod,
    title,
)
from tests.deploy.policies.network import rules

ALLOWED: Final = frozenset(
    {
        ("from", "ingress-nginx", "gateway", 8000),
        ("from", "ingress-nginx", "mcp", 8001),
        ("from", "monitoring", "mcp", 8080),
        ("from", "monitoring", "gateway", 8080),
        ("from", "monitoring", "registry", 8080),
        ("from", "monitoring", "computer", 8080),
        ("from", "monitoring", "computer-nodes", 8080),
        ("to", "observability", "gateway", 4318),
        ("to", "observability", "registry", 4318),
        ("to", "observability", "computer", 4318),
        ("to", "anywhere", "secrets", 443),
        ("to", "anywhere", "secrets", 6443),
        ("to", "anywhere", "secrets", 8443),
        ("to", "anywhere", "secrets", 16443),
    }
)
"""By namespace; the API server is in none, and no pod."""

_DNS: Final = 53
_API: Final = (443, 6443, 8443, 16443)
"""Where API servers listen: of managed clusters; of kubeadm, kind and k3s; of minikube; of MicroK8s."""


def outside(manifests: Manifests) -> list[str]:
    let = set(_let_through(manifests))
    problems = [f"{hop} is let through" for hop in sorted(let - ALLOWED)]
    problems += [f"{hop} is not let through" for hop in sorted(set(_needed(manifests, let)) - let)]
    problems += [
        f"{title(each)}: may not ask DNS by {protocol}"
        for each in manifests.of(*WORKLOADS)
        for protocol in ("TCP", "UDP")
        if not _may_ask_dns(manifests, each, protocol)
    ]
    served = [workload for _, workload in _behind_an_ingress(manifests)]
    return problems + [
        f"{title(each.workload)}: takes all clients behind the Ingress for one (SMCP_AUTH_PROXIES)"
        for each in containers(manifests)
        if each.workload in served and "SMCP_AUTH_PROXIES" not in environment(each, manifests)
    ]


def _let_through(manifests: Manifests) -> Iterator[tuple[str, str, str, int]]:
    for workload in manifests.of(*WORKLOADS):
        for way, word in (("ingress", "from"), ("egress", "to")):
            for peers, numbers in rules(manifests, workload, way):
                if set(numbers) == {_DNS} and peers == _RESOLVERS:
                    continue  # see `_may_ask_dns`
                if not peers:
                    yield from ((word, "anywhere", component(workload), number) for number in numbers)
                for peer in peers:
                    if "podSelector" not in peer:
                        where = peer.get("namespaceSelector", {}).get("matchLabels", {})
                        name = where.get("kubernetes.io/metadata.name", str(peer))
                        yield from ((word, name, component(workload), number) for number in numbers)


def _needed(manifests: Manifests, let: set[tuple[str, str, str, int]]) -> Iterator[tuple[str, str, str, int]]:
    for workload in manifests.of(*WORKLOADS):
        of = component(workload)
        if pod(workload).get("automountServiceAccountToken"):
            yield from (("to", "anywhere", of, port) for port in _API)
        notes = workload["spec"]["template"]["metadata"].get("annotations", {})
        # Where there is a Prometheus for some, it is there for all.
        if "prometheus.io/port" in notes and any(where == "monitoring" for _, where, _, _ in let):
            yield "from", "monitoring", of, int(notes["prometheus.io/port"])
    for service, workload in _behind_an_ingress(manifests):
        yield from (("from", "ingress-nginx", component(workload), one["port"]) for one in _ports(service))


def _behind_an_ingress(manifests: Manifests) -> Iterator[tuple[Object, Object]]:
    """Each Service that an Ingress names, with its Deployment."""
    for ingress in manifests.of("Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                service = manifests.named("Service", path["backend"]["service"]["name"])
                if service is None:
                    continue
                for workload in manifests.of("Deployment"):
                    if service["spec"]["selector"].items() <= labels(workload).items():
                        yield service, workload


def _ports(service: Object) -> list[Object]:
    return list(service["spec"]["ports"])


_RESOLVERS: Final = [
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
    {"ipBlock": {"cidr": "169.254.0.0/16"}},
]


def _may_ask_dns(manifests: Manifests, workload: Object, protocol: str) -> bool:
    """The cluster's own, and no other: what asks any server can send data away as questions."""
    return any(
        {"port": _DNS, "protocol": protocol} in rule.get("ports", []) and rule.get("to") == _RESOLVERS
        for policy in manifests.of("NetworkPolicy")
        if matches(policy["spec"]["podSelector"], labels(workload))
        for rule in policy["spec"].get("egress", [])
    )
