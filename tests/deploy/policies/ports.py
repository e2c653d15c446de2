"""Ports, probes and the annotations for Prometheus are those on which the processes answer."""

from smcp_service.health import Readiness, health_routes
from tests.deploy.objects import Container, Manifests, Object, containers, environment, pod, title
from tests.deploy.programs import command_of, settings_of

_OURS = {route.path for route in health_routes(Readiness())}
_OTHERS = {"nats": {"/healthz", "/healthz?js-enabled-only=true", "/healthz?js-server-only=true"}, "jaeger": {"/"}}
_WANTED = {"livenessProbe": "/livez", "readinessProbe": "/readyz", "startupProbe": "/livez"}


def ports(manifests: Manifests) -> list[str]:
    problems = []
    for container in containers(manifests):
        given = {port["name"]: port["containerPort"] for port in container.spec.get("ports", [])}
        probes = {word: container.spec[word]["httpGet"] for word in _WANTED if word in container.spec}
        problems += [
            f"{container.where}: {word} asks the port {probe['port']}, and it has {sorted(given)}"
            for word, probe in probes.items()
            if probe["port"] not in given
        ]
        if settings_of(container.spec) is not None and not container.first:
            problems += [f"{container.where}: {why}" for why in _ours(container, manifests, given, probes)]
        elif not container.first and given:
            known = _OTHERS.get(container.spec["name"], set())
            problems += [
                f"{container.where}: {word} asks for {probe['path']}, which it does not answer"
                for word, probe in probes.items()
                if probe["path"] not in known
            ]
    for service in manifests.of("Service"):
        problems += [f"{title(service)}: {why}" for why in _service(service, manifests)]
    return problems


def _ours(container: Container, manifests: Manifests, given: dict[str, int], probes: dict[str, Object]) -> list[str]:
    variables = environment(container, manifests)
    serving = {"smcp-gateway": {"http": "GATEWAY"}, "smcp-mcp": {"http": "MCP"}}
    kinds = {**serving.get(command_of(container.spec), {}), "health": "HEALTH"}
    listens = {
        name: (variables.get(f"SMCP_{kind}_HOST"), variables.get(f"SMCP_{kind}_PORT")) for name, kind in kinds.items()
    }
    problems = []
    if listens != {name: ("0.0.0.0", str(port)) for name, port in given.items()}:
        problems.append(f"it listens at {listens}, and its ports are {given}")
    for word, path in _WANTED.items():
        asked = probes.get(word, {}).get("path")
        if asked != path or path not in _OURS:
            problems.append(f"{word} asks for {asked}, and has to ask for {path}")
    notes = container.workload["spec"]["template"]["metadata"].get("annotations", {})
    if notes.get("prometheus.io/port") != str(given.get("health")):
        problems.append(f"Prometheus is sent to the port {notes.get('prometheus.io/port')}")
    if notes.get("prometheus.io/path") != "/metrics" or notes.get("prometheus.io/scrape") != "true":
        problems.append("Prometheus does not scrape /metrics")
    return problems


def _service(service: Object, manifests: Manifests) -> list[str]:
    """Every port of a Service is one of its pods', by name and by number."""
    offered = {
        port["name"]: port["containerPort"]
        for workload in manifests.of("Deployment", "StatefulSet", "DaemonSet")
        if service["spec"]["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        for each in pod(workload)["containers"]
        for port in each.get("ports", [])
    }
    return [
        f"sends port {port['port']} to {port['targetPort']}, and its pods have {offered}"
        for port in service["spec"]["ports"]
        if offered.get(port["targetPort"]) != port["port"]
    ]
