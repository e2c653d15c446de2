"""Nothing runs as root, with a root that can be written, or with more than it needs.

That is the Pod Security Standard `restricted`, and more.
"""

from tests.deploy.objects import WORKLOADS, Manifests, Object, containers, pod, title

_NEEDS_THE_API = {"smcp-secrets"}
"""Whose account's token is mounted."""

_OF_PODS = {"fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile"}
_OF_CONTAINERS = {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem"}
"""What a securityContext says here, and nothing else."""

_VOLUMES = {"configMap", "emptyDir", "secret"}
"""The kinds of volumes that pods here need; a node's own paths are none of them."""


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
        if more := sorted(context.keys() - _OF_PODS):
            problems.append(f"{title(workload)}: securityContext has {', '.join(more)}")
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            problems.append(f"{title(workload)}: has no seccomp profile")
        if any(spec.get(word) for word in ("hostNetwork", "hostPID", "hostIPC")):
            problems.append(f"{title(workload)}: shares the node's network, processes or memory")
        kinds = {kind for volume in spec.get("volumes", []) for kind in volume if kind != "name"}
        problems += [f"{title(workload)}: a volume of kind {kind}" for kind in sorted(kinds - _VOLUMES)]
        secret = [volume["secret"] for volume in spec.get("volumes", []) if "secret" in volume]
        if any(one.get("defaultMode", 0o644) & 0o007 for one in secret):
            problems.append(f"{title(workload)}: everybody in the container may read its Secrets")
        if (secret or _writes(workload)) and context.get("fsGroup") != context.get("runAsGroup"):
            problems.append(f"{title(workload)}: what is mounted is of another group (fsGroup), and not for it")
        asks = spec.get("automountServiceAccountToken")
        if asks is not (workload["metadata"]["name"] in _NEEDS_THE_API):
            problems.append(f"{title(workload)}: automountServiceAccountToken is {asks}")
    problems += _of_containers(manifests)
    for namespace in manifests.of("Namespace"):
        if namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
            problems.append(f"{title(namespace)}: does not enforce restricted pod security")
    return problems


def _of_containers(manifests: Manifests) -> list[str]:
    problems = []
    for container in containers(manifests):
        context = container.spec.get("securityContext", {})
        wrong = [
            word
            for word, right in (("allowPrivilegeEscalation", False), ("readOnlyRootFilesystem", True))
            if context.get(word) is not right
        ]
        if context.get("capabilities") != {"drop": ["ALL"]}:
            wrong.append("capabilities")
        wrong += sorted(context.keys() - _OF_CONTAINERS)  # what is said here counts more than what the pod says
        if any("hostPort" in port for port in container.spec.get("ports", [])):
            problems.append(f"{container.where}: takes a port of the node")
        problems += [f"{container.where}: securityContext.{word} is not as it has to be" for word in wrong]
    return problems


def _writes(workload: Object) -> bool:
    return any("emptyDir" in volume for volume in pod(workload).get("volumes", []))
