"""Nothing runs as root, with a root that can be written, or with more than it needs.

That is the Pod Security Standard `restricted`, and more.
"""

from tests.deploy.objects import WORKLOADS, Manifests, containers, pod, title

_NEEDS_THE_API = {"smcp-secrets"}
"""Whose account's token is mounted."""


def security(manifests: Manifests) -> list[str]:
    problems = []
    for workload in manifests.of(*WORKLOADS):
        spec, context = pod(workload), pod(workload).get("securityContext", {})
        if (
            context.get("runAsNonRoot") is not True
            or context.get("runAsUser", 0) == 0
            or context.get("runAsGroup") == 0
        ):
            problems.append(f"{title(workload)}: may run as root")
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            problems.append(f"{title(workload)}: has no seccomp profile")
        if any(spec.get(word) for word in ("hostNetwork", "hostPID", "hostIPC")):
            problems.append(f"{title(workload)}: shares the node's network, processes or memory")
        problems += [
            f"{title(workload)}: mounts a path of the node ({volume['name']})"
            for volume in spec.get("volumes", [])
            if "hostPath" in volume
        ]
        asks = spec.get("automountServiceAccountToken")
        if asks is not (workload["metadata"]["name"] in _NEEDS_THE_API):
            problems.append(f"{title(workload)}: automountServiceAccountToken is {asks}")
    for container in containers(manifests):
        context = container.spec.get("securityContext", {})
        wrong = [
            word
            for word, right in (("allowPrivilegeEscalation", False), ("readOnlyRootFilesystem", True))
            if context.get(word) is not right
        ]
        if context.get("capabilities") != {"drop": ["ALL"]}:
            wrong.append("capabilities")
        wrong += [word for word in ("privileged", "runAsUser", "runAsNonRoot") if word in context]
        problems += [f"{container.where}: securityContext.{word} is not as it has to be" for word in wrong]
    for namespace in manifests.of("Namespace"):
        if namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
            problems.append(f"{title(namespace)}: does not enforce restricted pod security")
    return problems
