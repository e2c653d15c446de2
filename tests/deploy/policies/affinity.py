"""Who may poll comes to the same gateway again; who has a WebSocket at once comes to any, so that new ones fill up."""

from urllib.parse import urlsplit

from tests.deploy.objects import Manifests, containers, environment


def affinity(manifests: Manifests) -> list[str]:
    problems = []
    clients = manifests.named("Service", "smcp-gateway")
    if clients is not None and clients["spec"].get("sessionAffinity") != "ClientIP":
        problems.append("Service smcp-gateway: a client that polls comes to another gateway each time")
    for container in containers(manifests):
        url = environment(container, manifests).get("SMCP_GATEWAY_URL", "")
        service = manifests.named("Service", str(urlsplit(url).hostname))
        if service is not None and service["spec"].get("sessionAffinity", "None") != "None":
            problems.append(f"{container.where}: who is told to go to another gateway never gets to one")
    return problems
