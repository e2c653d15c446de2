"""Every policy rejects the manifests that it is there for."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.objects import Manifests, Object, pod
from tests.deploy.policies import POLICIES
from tests.deploy.rendering import rendered

Break = Callable[[Manifests], None]
once = functools.cache(rendered)


def found(manifests: Manifests, kind: str, name: str) -> Object:
    thing = manifests.named(kind, name)
    assert thing is not None
    return thing


def gateway(manifests: Manifests) -> Object:
    return found(manifests, "Deployment", "smcp-gateway")


def main(workload: Object) -> Object:
    [container] = pod(workload)["containers"]
    assert isinstance(container, dict)
    return container


def told(manifests: Manifests, name: str) -> dict[str, str]:
    """The ConfigMap that begins with that name, and goes on with a hash."""
    [config] = [one for one in manifests.of("ConfigMap") if one["metadata"]["name"].rpartition("-")[0] == name]
    data = config["data"]
    assert isinstance(data, dict)
    return data


def put(where: Callable[[Manifests], Any], key: Any, value: Any) -> Break:
    def change(manifests: Manifests) -> None:
        where(manifests)[key] = value

    return change


def without(where: Callable[[Manifests], Any], key: Any) -> Break:
    def change(manifests: Manifests) -> None:
        del where(manifests)[key]

    return change


def away(kind: str, name: str) -> Break:
    return lambda manifests: manifests.objects.remove(found(manifests, kind, name))


def policy(manifests: Manifests, name: str) -> Any:
    return found(manifests, "NetworkPolicy", name)["spec"]


CONTAINER = lambda m: main(gateway(m))  # noqa: E731 -- they stand in a table
POD = lambda m: pod(gateway(m))  # noqa: E731
SPEC = lambda m: gateway(m)["spec"]  # noqa: E731
SERVICE = lambda m: found(m, "Service", "smcp-gateway")["spec"]  # noqa: E731
COMMON = lambda m: told(m, "smcp")  # noqa: E731
OF_GATEWAY = lambda m: told(m, "smcp-gateway")  # noqa: E731
OF_COMPUTER = lambda m: told(m, "smcp-computer")  # noqa: E731
NATS = lambda m: found(m, "StatefulSet", "smcp-nats")  # noqa: E731

BROKEN: list[tuple[str, str, Break]] = [
    ("selectors", "its selector takes nobody", put(lambda m: SERVICE(m)["selector"], "app.kubernetes.io/name", "gateway")),
    ("selectors", "its selector takes nobody", put(lambda m: SPEC(m)["selector"]["matchLabels"], "app.kubernetes.io/name", "x")),
    ("selectors", "its selector takes Deployment smcp-gateway, Deployment smcp-registry",
     lambda m: SERVICE(m).update(selector={"app.kubernetes.io/part-of": "a2c-smcp"}) or _only(m, "smcp-gateway", "smcp-registry")),
    ("selectors", "no pod is ever", put(lambda m: policy(m, "smcp-gateway")["podSelector"]["matchLabels"], "app.kubernetes.io/component", "gatway")),
    ("selectors", "to be spread", put(lambda m: POD(m)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"], "app.kubernetes.io/name", "x")),
    ("selectors", "there is no Deployment", put(lambda m: found(m, "HorizontalPodAutoscaler", "smcp-gateway")["spec"]["scaleTargetRef"], "name", "x")),
    ("selectors", "says replicas", put(SPEC, "replicas", 2)),
    ("selectors", "no Service smcp-gateway has a port https",
     put(lambda m: found(m, "Ingress", "smcp-gateway")["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["port"], "name", "https")),
    ("selectors", "there is no Service nats", put(lambda m: NATS(m)["spec"], "serviceName", "nats")),
    ("ports", "asks the port web", put(lambda m: CONTAINER(m)["livenessProbe"]["httpGet"], "port", "web")),
    ("ports", "has to ask for /livez", put(lambda m: CONTAINER(m)["livenessProbe"]["httpGet"], "path", "/readyz")),
    ("ports", "has to ask for /readyz", put(lambda m: CONTAINER(m)["readinessProbe"]["httpGet"], "path", "/ready")),
    ("ports", "has to ask for /livez", without(CONTAINER, "startupProbe")),
    ("ports", "it listens at", put(lambda m: CONTAINER(m)["ports"][0], "containerPort", 8001)),
    ("ports", "it listens at {'127.0.0.1'", put(OF_GATEWAY, "SMCP_GATEWAY_HOST", "127.0.0.1")),
    ("ports", "Prometheus is sent to the port 9", put(lambda m: SPEC(m)["template"]["metadata"]["annotations"], "prometheus.io/port", "9")),
    ("ports", "sends port 80", put(lambda m: SERVICE(m)["ports"][0], "port", 80)),
    ("ports", "which it does not answer", put(lambda m: main(NATS(m))["readinessProbe"]["httpGet"], "path", "/readyz")),
    ("settings", "SMCP_NATS_URLS is not a setting", put(COMMON, "SMCP_NATS_URLS", "x")),
    ("settings", "OTEL_EXPORTER is read by nobody", put(COMMON, "OTEL_EXPORTER", "x")),
    ("settings", "SMCP_DRAIN_S: ", put(COMMON, "SMCP_DRAIN_S", "a minute")),
    ("settings", "SMCP_NATS_URL: ", put(COMMON, "SMCP_NATS_URL", "http://nats:4222")),
    ("settings", "SMCP_NATS_CA: is for NATS with TLS", put(COMMON, "SMCP_NATS_URL", "nats://smcp-nats:4222")),
    ("settings", "SMCP_OFFICE: ", without(OF_COMPUTER, "SMCP_OFFICE")),
    ("settings", "SMCP_CONFIG: ", without(OF_COMPUTER, "SMCP_CONFIG")),
    ("settings", "nothing says who may connect", without(OF_GATEWAY, "SMCP_AUTH_KEYS")),
    ("settings", "nothing is mounted that has /run/smcp/key.json", put(OF_GATEWAY, "SMCP_AUTH_KEYS", "/run/smcp/key.json")),
    ("settings", "there is no command smcp-gatewayd", put(CONTAINER, "command", ["smcp-gatewayd"])),
    ("settings", "has no smcp-gateway", put(CONTAINER, "image", "smcp-registry:dev")),
    ("settings", "no step before gateway checks", put(lambda m: POD(m)["initContainers"][0], "args", [])),
    ("settings", "no step before gateway checks", put(lambda m: POD(m)["initContainers"][0], "envFrom", [])),
    ("settings", "is connected one way", put(lambda m: told(m, "smcp-computer-nodes"), "SMCP_NATS_URL", "nats://smcp-nats:4222")),
    ("grace", "may take 75 s to stop, and is killed after 75 s", put(POD, "terminationGracePeriodSeconds", 75)),
    ("grace", "may take 135 s to stop", put(COMMON, "SMCP_DRAIN_S", "120")),
    ("resources", "needs more memory", put(lambda m: CONTAINER(m)["resources"]["requests"], "memory", "2Gi")),
    ("resources", "needs more cpu", put(lambda m: CONTAINER(m)["resources"]["limits"], "cpu", "100m")),
    ("resources", "does not say how much memory", without(lambda m: CONTAINER(m)["resources"]["limits"], "memory")),
    ("names", "is no legal name", put(lambda m: gateway(m)["metadata"], "name", "smcp_gateway")),
    ("names", "is no legal name", put(lambda m: found(m, "Service", "smcp-gateway")["metadata"], "name", "g" * 64)),
    ("names", "the label office=a b is not legal", put(lambda m: SPEC(m)["template"]["metadata"]["labels"], "office", "a b")),
    ("names", "the port's name 'a-name-that-is-long' is not legal", put(lambda m: CONTAINER(m)["ports"][0], "name", "a-name-that-is-long")),
    ("names", "stands twice", lambda m: m.objects.append(copy.deepcopy(gateway(m)))),
    ("security", "may run as root", put(lambda m: POD(m)["securityContext"], "runAsUser", 0)),
    ("security", "may run as root", without(lambda m: POD(m)["securityContext"], "runAsNonRoot")),
    ("security", "readOnlyRootFilesystem is not", put(lambda m: CONTAINER(m)["securityContext"], "readOnlyRootFilesystem", False)),
    ("security", "allowPrivilegeEscalation is not", without(lambda m: main(NATS(m))["securityContext"], "allowPrivilegeEscalation")),
    ("security", "capabilities is not", put(lambda m: CONTAINER(m)["securityContext"], "capabilities", {"drop": ["ALL"], "add": ["NET_RAW"]})),
    ("security", "runAsUser is not", put(lambda m: CONTAINER(m)["securityContext"], "runAsUser", 0)),
    ("security", "no seccomp profile", without(lambda m: POD(m)["securityContext"], "seccompProfile")),
    ("security", "shares the node's network", put(POD, "hostNetwork", True)),
    ("security", "mounts a path of the node", lambda m: POD(m)["volumes"].append({"name": "x", "hostPath": {"path": "/"}})),
    ("security", "automountServiceAccountToken is True", put(POD, "automountServiceAccountToken", True)),
    ("security", "does not enforce", put(lambda m: found(m, "Namespace", "smcp")["metadata"], "labels", {})),
    ("network", "registry has to speak to nats on 4222, and may not", away("NetworkPolicy", "smcp-registry")),
    ("network", "computer has to speak to nats on 4222, and may not", away("NetworkPolicy", "smcp-nats-computer")),
    ("network", "everybody may speak to it", away("NetworkPolicy", "smcp-nothing")),
    ("network", "gateway may speak to registry on 8080, and has no business there",
     lambda m: (_open(m, "smcp-gateway", "egress", "to", "registry", 8080), _open(m, "smcp-nats", "ingress", "from", "gateway", 8080, "registry"))),
    ("network", "one side lets computer speak to registry on 8080", lambda m: _open(m, "smcp-computer", "egress", "to", "registry", 8080)),
    ("network", "('from', 'anywhere', 'nats', 4222)", lambda m: policy(m, "smcp-nats")["ingress"].append({"ports": [{"port": 4222, "protocol": "TCP"}]})),
    ("network", "('to', 'anywhere', 'gateway', 0)", lambda m: policy(m, "smcp-gateway")["egress"].append({})),
    ("references", "nobody says how the Secret smcp-gatway", put(lambda m: POD(m)["volumes"][0]["secret"], "secretName", "smcp-gatway")),
    ("references", "is made without token", put(lambda m: POD(m)["volumes"][0]["secret"]["items"][0], "key", "token")),
    ("references", "nobody says how the Secret tls is made", put(lambda m: found(m, "Ingress", "smcp-gateway")["spec"]["tls"][0], "secretName", "tls")),
    ("references", "there is no ConfigMap", lambda m: m.objects.remove(next(one for one in m.of("ConfigMap") if "SMCP_GATEWAY_HOST" in one["data"]))),
    ("references", "there is no ServiceAccount", away("ServiceAccount", "smcp-gateway")),
    ("references", "there is no volume data", without(lambda m: NATS(m)["spec"], "volumeClaimTemplates")),
    ("references", "has no /tmp", put(CONTAINER, "volumeMounts", [])),
    ("references", "SMCP_AUTH_SECRET looks like a secret", put(OF_GATEWAY, "SMCP_AUTH_SECRET", "x" * 32)),
    ("references", "would be the same on every cluster", lambda m: m.objects.append({"kind": "Secret", "metadata": {"name": "x"}})),
    ("images", "may be another image tomorrow", put(CONTAINER, "image", "smcp-gateway:latest")),
    ("images", "may be another image tomorrow", put(CONTAINER, "image", "registry.example.com:5000/smcp-gateway")),
    ("images", "nobody builds smcp-door", put(CONTAINER, "image", "smcp-door:1")),
    ("images", "imagePullPolicy", put(CONTAINER, "imagePullPolicy", "Always")),
    ("replicas", "two would ask for one name", put(lambda m: found(m, "Deployment", "smcp-computer")["spec"], "replicas", 2)),
    ("replicas", "takes replicas away", put(lambda m: SPEC(m)["strategy"]["rollingUpdate"], "maxUnavailable", 1)),
    ("replicas", "there is no PodDisruptionBudget", away("PodDisruptionBudget", "smcp-registry")),
    ("replicas", "one replica is gone", put(lambda m: found(m, "Deployment", "smcp-registry")["spec"], "replicas", 1)),
    ("replicas", "3 nodes, and SMCP_KV_REPLICAS is {'1'}", put(lambda m: told(m, "smcp-registry"), "SMCP_KV_REPLICAS", "1")),
    ("canonical", "1000m would be kept otherwise", put(lambda m: CONTAINER(m)["resources"]["limits"], "cpu", "1000m")),
    ("canonical", "1024Mi would be kept otherwise", put(lambda m: CONTAINER(m)["resources"]["limits"], "memory", "1024Mi")),
    ("canonical", "is no text", put(lambda m: CONTAINER(m)["resources"]["limits"], "cpu", 2)),
    ("canonical", "a port without its protocol", without(lambda m: policy(m, "smcp-nats")["ingress"][0]["ports"][0], "protocol")),
    ("canonical", "does not say policyTypes", without(lambda m: policy(m, "smcp-nats"), "policyTypes")),
    ("canonical", "is dropped", put(lambda m: gateway(m)["metadata"], "creationTimestamp", None)),
    ("canonical", "the API server completes data", without(lambda m: NATS(m)["spec"]["volumeClaimTemplates"][0], "status")),
]  # fmt: skip


def _only(manifests: Manifests, *kept: str) -> None:
    gone = [
        each for each in manifests.of("Deployment", "StatefulSet", "DaemonSet") if each["metadata"]["name"] not in kept
    ]
    for each in gone:
        manifests.objects.remove(each)


def _open(manifests: Manifests, of: str, way: str, word: str, other: str, port: int, whose: str | None = None) -> None:
    """Let a policy's pods, or those of `whose`, speak to another component."""
    peer = {"podSelector": {"matchLabels": {"app.kubernetes.io/component": other}}}
    rule = {word: [peer], "ports": [{"port": port, "protocol": "TCP"}]}
    spec = copy.deepcopy(policy(manifests, of)) if whose else policy(manifests, of)
    if whose is None:
        spec[way].append(rule)
        return
    spec |= {"podSelector": {"matchLabels": {"app.kubernetes.io/component": whose}}, way: [rule]}
    manifests.objects.append({"kind": "NetworkPolicy", "metadata": {"name": "added"}, "spec": spec})


@pytest.mark.parametrize(
    ("name", "said", "broken"), BROKEN, ids=[f"{name}-{number}" for number, (name, _, _) in enumerate(BROKEN)]
)
def test_a_broken_manifest_is_rejected_and_it_is_said_why(name: str, said: str, broken: Break) -> None:
    manifests = copy.deepcopy(once("prod+computer+computer-nodes+nats-cluster+hpa-cpu"))
    assert POLICIES[name](manifests) == []
    broken(manifests)
    problems = POLICIES[name](manifests)
    assert any(said in problem for problem in problems), problems


def test_a_job_that_would_run_again_is_rejected() -> None:
    manifests = copy.deepcopy(once("dev"))
    found(manifests, "Job", "smcp-demo")["spec"]["ttlSecondsAfterFinished"] = 60
    assert any("would run again" in problem for problem in POLICIES["canonical"](manifests))


def test_a_role_that_is_bound_to_nobody_is_rejected() -> None:
    manifests = copy.deepcopy(once("dev"))
    found(manifests, "RoleBinding", "smcp-secrets")["subjects"][0]["namespace"] = "default"
    assert any("binds what is not there" in problem for problem in POLICIES["references"](manifests))


def test_every_policy_has_something_that_it_rejects() -> None:
    assert {name for name, _, _ in BROKEN} == set(POLICIES)
