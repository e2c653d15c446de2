"""The policies of the network are written in the few forms that the other policies read: nothing passes them by."""

from collections.abc import Iterator

from tests.deploy.objects import Manifests, Object, title

_NAMESPACE = "kubernetes.io/metadata.name"
_DNS = 53


def peers(manifests: Manifests) -> list[str]:
    return [
        f"{title(policy)}: {why}"
        for policy in manifests.of("NetworkPolicy")
        for rule in (*policy["spec"].get("ingress", []), *policy["spec"].get("egress", []))
        for why in _odd(rule)
    ]


def _odd(rule: Object) -> Iterator[str]:
    for port in rule.get("ports", []):
        wanted = {"port": port.get("port"), "protocol": "TCP"}
        if port != wanted and port != {"port": _DNS, "protocol": "UDP"}:
            yield f"{port} is more than a port of TCP"
    for peer in (*rule.get("from", []), *rule.get("to", [])):
        if not _is_ours(peer) and not _is_a_namespace(peer):
            yield f"{peer} is neither a component here nor a namespace elsewhere"


def _is_ours(peer: Object) -> bool:
    return set(peer) == {"podSelector"} and set(peer["podSelector"]) == {"matchLabels"}


def _is_a_namespace(peer: Object) -> bool:
    selector = peer.get("namespaceSelector", {})
    return set(peer) == {"namespaceSelector"} and set(selector.get("matchLabels", {})) == {_NAMESPACE}
