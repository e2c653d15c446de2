"""Whoever looks for pods by their labels finds the ones that are meant, and those alone."""

from tests.deploy.objects import COMPONENT, WORKLOADS, Manifests, Object, component, labels, matches, pod, title

_COMPONENTS = ("agent", "computer", "computer-nodes", "gateway", "jaeger", "nats", "registry", "secrets")
"""Not all of them are in every rendering; policies of the network may name them all the same."""


def selectors(manifests: Manifests) -> list[str]:
    problems = []
    workloads = manifests.of(*WORKLOADS)
    for workload in manifests.of("Deployment", "StatefulSet", "DaemonSet"):
        found = [other for other in workloads if matches(workload["spec"]["selector"], labels(other))]
        if found != [workload]:
            problems.append(f"{title(workload)}: its selector takes {_titles(found)}")
        problems += [f"{title(workload)}: {why}" for why in _own(workload)]
    for budget in manifests.of("PodDisruptionBudget"):
        found = [other for other in workloads if matches(budget["spec"]["selector"], labels(other))]
        if len(found) != 1:
            problems.append(f"{title(budget)}: its selector takes {_titles(found)}")
    for policy in manifests.of("NetworkPolicy"):
        rules = (*policy["spec"].get("ingress", []), *policy["spec"].get("egress", []))
        peers = [peer for rule in rules for peer in (*rule.get("from", []), *rule.get("to", []))]
        meant = [policy["spec"]["podSelector"], *(peer["podSelector"] for peer in peers if "podSelector" in peer)]
        problems += [
            f"{title(policy)}: no pod is ever {selector}"
            for selector in meant
            if selector and selector not in [{"matchLabels": {COMPONENT: name}} for name in _COMPONENTS]
        ]
    for service in manifests.of("Service"):
        found = [other for other in workloads if matches({"matchLabels": service["spec"]["selector"]}, labels(other))]
        if len(found) != 1:
            problems.append(f"{title(service)}: its selector takes {_titles(found)}")
    for each in workloads:
        if component(each) not in _COMPONENTS:
            problems.append(f"{title(each)}: its pods say no component that policies of the network know")
    return [*problems, *_targets(manifests)]


def _own(workload: Object) -> list[str]:
    """A pod keeps away from its own kind."""
    spread = [one["labelSelector"] for one in pod(workload).get("topologySpreadConstraints", [])]
    affinity = pod(workload).get("affinity", {}).get("podAntiAffinity", {})
    apart = [one["labelSelector"] for one in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])]
    return [
        f"it is to be spread by {selector}, and has not these labels"
        for selector in (*spread, *apart)
        if not matches(selector, labels(workload))
    ]


def _targets(manifests: Manifests) -> list[str]:
    problems = []
    for scaler in manifests.of("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        found = manifests.named(target["kind"], target["name"])
        if found is None:
            problems.append(f"{title(scaler)}: there is no {target['kind']} {target['name']}")
        elif "replicas" in found["spec"]:
            problems.append(f"{title(found)}: says replicas, and {title(scaler)} does, too")
    for ingress in manifests.of("Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                wanted = path["backend"]["service"]
                service = manifests.named("Service", wanted["name"])
                offered = [] if service is None else [port["name"] for port in service["spec"]["ports"]]
                if wanted["port"]["name"] not in offered:
                    problems.append(
                        f"{title(ingress)}: no Service {wanted['name']} has a port {wanted['port']['name']}"
                    )
    problems += [
        f"{title(workload)}: there is no Service {workload['spec']['serviceName']}"
        for workload in manifests.of("StatefulSet")
        if manifests.named("Service", workload["spec"]["serviceName"]) is None
    ]
    return problems


def _titles(found: list[Object]) -> str:
    return ", ".join(map(title, found)) or "nobody"
