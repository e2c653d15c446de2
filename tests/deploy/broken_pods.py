"""What is wrong with pods, and with what finds them."""

from tests.deploy.breaking import (
    Broken,
    both,
    common,
    container,
    found,
    gateway_pod,
    main,
    nats,
    of_computer,
    of_gateway,
    only,
    policy,
    put,
    service,
    spec,
    told,
    without,
)

BROKEN_PODS: list[Broken] = [
    (
        "selectors",
        "its selector takes nobody",
        put(lambda m: service(m)["selector"], "app.kubernetes.io/name", "gateway"),
    ),
    (
        "selectors",
        "its selector takes nobody",
        put(lambda m: spec(m)["selector"]["matchLabels"], "app.kubernetes.io/name", "x"),
    ),
    (
        "selectors",
        "its selector takes Deployment smcp-gateway, Deployment smcp-registry",
        both(
            put(service, "selector", {"app.kubernetes.io/part-of": "a2c-smcp"}),
            only("smcp-gateway", "smcp-registry"),
        ),
    ),
    (
        "selectors",
        "no pod is ever",
        put(lambda m: policy(m, "smcp-gateway")["podSelector"]["matchLabels"], "app.kubernetes.io/component", "gatway"),
    ),
    (
        "selectors",
        "to be spread",
        put(
            lambda m: gateway_pod(m)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
            "app.kubernetes.io/name",
            "x",
        ),
    ),
    (
        "selectors",
        "there is no Deployment",
        put(lambda m: found(m, "HorizontalPodAutoscaler", "smcp-gateway")["spec"]["scaleTargetRef"], "name", "x"),
    ),
    ("selectors", "says replicas", put(spec, "replicas", 2)),
    (
        "selectors",
        "no Service smcp-gateway has a port https",
        put(
            lambda m: found(m, "Ingress", "smcp-gateway")["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"][
                "port"
            ],
            "name",
            "https",
        ),
    ),
    ("selectors", "there is no Service nats", put(lambda m: nats(m)["spec"], "serviceName", "nats")),
    ("ports", "asks the port web", put(lambda m: container(m)["livenessProbe"]["httpGet"], "port", "web")),
    ("ports", "has to ask for /livez", put(lambda m: container(m)["livenessProbe"]["httpGet"], "path", "/readyz")),
    ("ports", "has to ask for /readyz", put(lambda m: container(m)["readinessProbe"]["httpGet"], "path", "/ready")),
    ("ports", "has to ask for /livez", without(container, "startupProbe")),
    ("ports", "it listens at", put(lambda m: container(m)["ports"][0], "containerPort", 8001)),
    ("ports", "it listens at {'127.0.0.1'", put(of_gateway, "SMCP_GATEWAY_HOST", "127.0.0.1")),
    (
        "ports",
        "Prometheus is sent to the port 9",
        put(lambda m: spec(m)["template"]["metadata"]["annotations"], "prometheus.io/port", "9"),
    ),
    ("ports", "sends port 80", put(lambda m: service(m)["ports"][0], "port", 80)),
    ("ports", "which it does not answer", put(lambda m: main(nats(m))["readinessProbe"]["httpGet"], "path", "/readyz")),
    ("settings", "SMCP_NATS_URLS is not a setting", put(common, "SMCP_NATS_URLS", "x")),
    ("settings", "OTEL_EXPORTER is read by nobody", put(common, "OTEL_EXPORTER", "x")),
    ("settings", "SMCP_DRAIN_S: ", put(common, "SMCP_DRAIN_S", "a minute")),
    ("settings", "SMCP_NATS_URL: ", put(common, "SMCP_NATS_URL", "http://nats:4222")),
    ("settings", "SMCP_NATS_CA: is for NATS with TLS", put(common, "SMCP_NATS_URL", "nats://smcp-nats:4222")),
    ("settings", "SMCP_OFFICE: ", without(of_computer, "SMCP_OFFICE")),
    ("settings", "SMCP_CONFIG: ", without(of_computer, "SMCP_CONFIG")),
    ("settings", "nothing says who may connect", without(of_gateway, "SMCP_AUTH_KEYS")),
    (
        "settings",
        "nothing is mounted that has /run/smcp/key.json",
        put(of_gateway, "SMCP_AUTH_KEYS", "/run/smcp/key.json"),
    ),
    ("settings", "there is no command smcp-gatewayd", put(container, "command", ["smcp-gatewayd"])),
    ("settings", "has no smcp-gateway", put(container, "image", "smcp-registry:dev")),
    ("settings", "no step before gateway checks", put(lambda m: gateway_pod(m)["initContainers"][0], "args", [])),
    ("settings", "no step before gateway checks", put(lambda m: gateway_pod(m)["initContainers"][0], "envFrom", [])),
    (
        "settings",
        "is connected one way",
        put(lambda m: told(m, "smcp-computer-nodes"), "SMCP_NATS_URL", "nats://smcp-nats:4222"),
    ),
    ("grace", "may take 75 s to stop, and is killed after 75 s", put(gateway_pod, "terminationGracePeriodSeconds", 75)),
    ("grace", "may take 135 s to stop", put(common, "SMCP_DRAIN_S", "120")),
    ("resources", "needs more memory", put(lambda m: container(m)["resources"]["requests"], "memory", "2Gi")),
    ("resources", "needs more cpu", put(lambda m: container(m)["resources"]["limits"], "cpu", "100m")),
    ("resources", "does not say how much memory", without(lambda m: container(m)["resources"]["limits"], "memory")),
]
