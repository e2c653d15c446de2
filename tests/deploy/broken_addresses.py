"""What is wrong with who speaks to whom: addresses, what is outside, and NATS's own configuration."""

from typing import Any

from tests.deploy.breaking import (
    Break,
    Broken,
    away,
    common,
    found,
    gateway,
    gateway_pod,
    main,
    nats,
    of_computer,
    policy,
    put,
    service,
    told,
    without,
)
from tests.deploy.objects import Manifests, Object, pod

NATS_URL = "SMCP_NATS_URL"


def first_path(m: Manifests) -> Any:
    return found(m, "Ingress", "smcp-gateway")["spec"]["rules"][0]["http"]["paths"][0]


def notes(m: Manifests) -> Any:
    return found(m, "Ingress", "smcp-gateway")["metadata"]["annotations"]


def scaler(m: Manifests) -> Any:
    return found(m, "HorizontalPodAutoscaler", "smcp-gateway")["spec"]


def note(name: str, value: str) -> Break:
    return put(notes, f"nginx.ingress.kubernetes.io/{name}", value)


def first_port(m: Manifests) -> Any:
    return policy(m, "smcp-nats")["ingress"][0]["ports"][0]


def claim(m: Manifests) -> Any:
    return nats(m)["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]


def ports(m: Manifests) -> list[Object]:
    return list(main(nats(m))["ports"])


BROKEN_ADDRESSES: list[Broken] = [
    ("addresses", "there is no Service smcp-nat", put(common, NATS_URL, "tls://smcp-nat:4222")),
    ("addresses", "has no such port", put(common, NATS_URL, "tls://smcp-nats:4223")),
    ("addresses", "has no pod smcp-nats-3", put(common, NATS_URL, "tls://smcp-nats-3.smcp-nats:4222")),
    ("addresses", "has no pod gateway-0", put(common, NATS_URL, "http://gateway-0.smcp-gateway:8000")),
    ("addresses", "the network does not let it through", away("NetworkPolicy", "smcp-registry")),
    ("addresses", "it may not speak to the namespace observability", away("NetworkPolicy", "smcp-gateway-traces")),
    (
        "addresses",
        "it may not speak to the namespace monitoring",
        put(common, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel-collector.monitoring:4318"),
    ),
    ("addresses", "there is no Service smcp-gateway-any", away("Service", "smcp-gateway-any")),
    (
        "outside",
        "('from', 'anywhere', 'nats', 4222) is let through",
        lambda m: policy(m, "smcp-nats")["ingress"].append({"ports": [{"port": 4222, "protocol": "TCP"}]}),
    ),
    (
        "outside",
        "('to', 'anywhere', 'gateway', 0) is let through",
        lambda m: policy(m, "smcp-gateway")["egress"].append({}),
    ),
    (
        "outside",
        "('from', 'ingress-nginx', 'gateway', 8000) is not let through",
        away("NetworkPolicy", "smcp-gateway-clients"),
    ),
    (
        "outside",
        "('from', 'monitoring', 'computer-nodes', 8080) is not let through",
        away("NetworkPolicy", "smcp-computer-nodes-metrics"),
    ),
    ("outside", "may not ask DNS by UDP", away("NetworkPolicy", "smcp-dns")),
    ("outside", "may not ask DNS by TCP", lambda m: policy(m, "smcp-dns")["egress"][0]["ports"].pop()),
    ("ingress", "is refused by ingress-nginx as Prefix", put(first_path, "pathType", "Prefix")),
    ("ingress", "is not for the outside", put(first_path, "path", "/")),
    ("ingress", "is not sent to the same gateway", note("upstream-hash-by", "$request_uri")),
    ("ingress", "proxy-body-size is below", note("proxy-body-size", "32m")),
    ("ingress", "proxy-read-timeout cuts off", note("proxy-read-timeout", "60")),
    ("ingress", "wait in the proxy", note("proxy-buffering", "on")),
    (
        "scaling",
        "gateways show no smcp_gateway_socket",
        put(
            scaler,
            "metrics",
            [{"type": "Pods", "pods": {"metric": {"name": "smcp_gateway_socket"}, "target": {"type": "AverageValue"}}}],
        ),
    ),
    ("scaling", "is no room", put(scaler, "maxReplicas", 2)),
    (
        "scaling",
        "a share of the cpu that nobody asks for",
        without(lambda m: main(found(m, "Deployment", "smcp-gateway"))["resources"]["requests"], "cpu"),
    ),
    (
        "settings",
        "OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL",
        put(common, "OTEL_EXPORTER_OTLP_ENDPOINT", "otel-collector.observability:4318"),
    ),
    (
        "affinity",
        "never gets to one",
        put(lambda m: told(m, "smcp-computer-nodes"), "SMCP_GATEWAY_URL", "http://smcp-gateway:8000"),
    ),
    ("affinity", "comes to another gateway each time", without(service, "sessionAffinity")),
    ("peers", "is more than a port of TCP", put(first_port, "endPort", 65535)),
    ("peers", "is more than a port of TCP", put(first_port, "protocol", "UDP")),
    (
        "peers",
        "is neither a component here nor a namespace elsewhere",
        put(
            lambda m: policy(m, "smcp-nats")["ingress"][0]["from"][0],
            "namespaceSelector",
            {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        ),
    ),
    (
        "peers",
        "is neither a component here nor a namespace elsewhere",
        lambda m: policy(m, "smcp-nats")["ingress"][0]["from"].append({"ipBlock": {"cidr": "0.0.0.0/0"}}),
    ),
    ("secrets", "has a URL with a password", put(common, NATS_URL, "tls://admin:hunter2@smcp-nats:4222")),
    ("secrets", "SMCP_INPUT_CRM is a secret", put(of_computer, "SMCP_INPUT_CRM", "hunter2")),
    (
        "secrets",
        "SMCP_TOKEN is a secret",
        put(lambda m: main(gateway(m)), "env", [{"name": "SMCP_TOKEN", "value": "hunter2"}]),
    ),
    ("spread", "may be on one machine", without(gateway_pod, "topologySpreadConstraints")),
    ("spread", "may be on one machine", without(lambda m: pod(nats(m)), "affinity")),
    ("spread", "its PodDisruptionBudget is []", away("PodDisruptionBudget", "smcp-nats")),
    (
        "spread",
        "nobody may ever be moved",
        put(lambda m: found(m, "PodDisruptionBudget", "smcp-gateway")["spec"], "maxUnavailable", 0),
    ),
    (
        "spread",
        "its PodDisruptionBudget is ['smcp-gateway', 'smcp-registry']",
        put(
            lambda m: found(m, "PodDisruptionBudget", "smcp-gateway")["spec"],
            "selector",
            {"matchLabels": {"app.kubernetes.io/name": "smcp-registry"}},
        ),
    ),
    ("nats", "it listens at", lambda m: ports(m)[0].update(containerPort=4223)),
    ("nats", "/data/jetstream cannot be written", put(lambda m: main(nats(m)), "volumeMounts", [])),
    ("nats", "9GB does not fit", put(claim, "storage", "9Gi")),
    ("nats", "is told nats://", put(common, NATS_URL, "nats://smcp-nats:4222")),
    (
        "nats",
        "nothing is mounted that has /etc/nats-tls/ca.crt",
        lambda m: [one["secret"]["items"].pop() for one in pod(nats(m))["volumes"] if one["name"] == "tls"],
    ),
    ("nats", "cluster.routes: the nodes are", put(lambda m: nats(m)["spec"], "replicas", 5)),
    ("nats", "server_name: $POD_NAME is no variable", put(lambda m: main(nats(m)), "env", [])),
    ("nats", "nobody may be 'another computer'", put(of_computer, "SMCP_NAME", "another computer")),
]
