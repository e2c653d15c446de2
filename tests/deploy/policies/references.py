"""Whatever is referred to is there: in the manifests, made by the demo, or in the README's list of Secrets."""

from collections.abc import Iterator

from tests.deploy.objects import WORKLOADS, Container, Manifests, Object, containers, pod, title


def references(manifests: Manifests) -> list[str]:
    problems = []
    for workload in manifests.of(*WORKLOADS):
        problems += [f"{title(workload)}: {why}" for why in _pod(workload, manifests)]
    for container in containers(manifests):
        problems += [f"{container.where}: {why}" for why in _container(container, manifests)]
    for ingress in manifests.of("Ingress"):
        problems += [
            f"{title(ingress)}: nobody says how the Secret {tls['secretName']} is made"
            for tls in ingress["spec"]["tls"]
            if tls["secretName"] not in manifests.secrets
        ]
    for binding in manifests.of("RoleBinding"):
        names = [manifests.named("Role", binding["roleRef"]["name"])]
        names += [manifests.named("ServiceAccount", subject["name"]) for subject in binding["subjects"]]
        spaces = {subject.get("namespace") for subject in binding["subjects"]}
        if None in names or spaces != {binding["metadata"]["namespace"]}:
            problems.append(f"{title(binding)}: binds what is not there")
    for config in manifests.of("ConfigMap"):
        problems += [
            f"{title(config)}: {key} looks like a secret, and everybody may read a ConfigMap"
            for key in config["data"]
            if key.endswith(("_SECRET", "_TOKEN", "_PASSWORD", "_KEY"))
        ]
    if manifests.of("Secret"):
        problems.append("a Secret stands in the manifests, and would be the same on every cluster")
    return problems


def _pod(workload: Object, manifests: Manifests) -> Iterator[str]:
    if manifests.named("ServiceAccount", pod(workload)["serviceAccountName"]) is None:
        yield f"there is no ServiceAccount {pod(workload)['serviceAccountName']}"
    for volume in pod(workload).get("volumes", []):
        if "secret" in volume:
            yield from _secret(
                manifests, volume["secret"]["secretName"], {item["key"] for item in volume["secret"]["items"]}
            )
        if "configMap" in volume and not manifests.config(volume["configMap"]["name"]):
            yield f"there is no ConfigMap {volume['configMap']['name']}"
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim and manifests.named("PersistentVolumeClaim", claim) is None:
            yield f"there is no PersistentVolumeClaim {claim}"


def _container(container: Container, manifests: Manifests) -> Iterator[str]:
    volumes = {volume["name"] for volume in pod(container.workload).get("volumes", [])}
    volumes |= {claim["metadata"]["name"] for claim in container.workload["spec"].get("volumeClaimTemplates", [])}
    for mount in container.spec.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"there is no volume {mount['name']}"
    if "/tmp" not in {mount["mountPath"] for mount in container.spec.get("volumeMounts", [])}:
        yield "has no /tmp, and its root cannot be written"
    for source in container.spec.get("envFrom", []):
        if not manifests.config(source["configMapRef"]["name"]):
            yield f"there is no ConfigMap {source['configMapRef']['name']}"
    for entry in container.spec.get("env", []):
        wanted = entry.get("valueFrom", {}).get("secretKeyRef")
        if wanted is not None:
            yield from _secret(manifests, wanted["name"], {wanted["key"]})


def _secret(manifests: Manifests, name: str, keys: set[str]) -> Iterator[str]:
    known = manifests.secrets.get(name)
    if known is None:
        yield f"nobody says how the Secret {name} is made"
    elif missing := keys - known:
        yield f"the Secret {name} is made without {', '.join(sorted(missing))}"
