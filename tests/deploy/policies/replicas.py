"""How many there may be of what: a Computer's name is one Computer, and what serves everybody is there twice."""

from tests.deploy.objects import Manifests, component, title


def replicas(manifests: Manifests) -> list[str]:
    problems = []
    for workload in manifests.of("Deployment"):
        spec = workload["spec"]
        match component(workload):
            case "computer":
                if spec.get("replicas") != 1 or spec["strategy"] != {"type": "Recreate"}:
                    problems.append(f"{title(workload)}: two would ask for one name: one replica, and Recreate")
            case "gateway" | "registry":
                if spec.get("replicas", 2) < 2:
                    problems.append(f"{title(workload)}: one replica is gone while it is replaced")
                if spec["strategy"].get("rollingUpdate", {}).get("maxUnavailable") != 0:
                    problems.append(f"{title(workload)}: an update takes replicas away before the new ones are there")
                if manifests.named("PodDisruptionBudget", workload["metadata"]["name"]) is None:
                    problems.append(f"{title(workload)}: there is no PodDisruptionBudget")
    kept = manifests.named("StatefulSet", "smcp-nats")
    copies = {
        config["data"]["SMCP_KV_REPLICAS"]
        for config in manifests.of("ConfigMap")
        if "SMCP_KV_REPLICAS" in config.get("data", {})
    }
    if kept is not None and copies != {str(kept["spec"]["replicas"])}:
        problems.append(
            f"{title(kept)}: {kept['spec']['replicas']} nodes, and SMCP_KV_REPLICAS is {copies or 'not set'}"
        )
    return problems
