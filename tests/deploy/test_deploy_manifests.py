"""Every rendering of deploy/k8s is valid for Kubernetes, and keeps every policy."""

import functools
import json
import re
from decimal import Decimal

import kubernetes_validate
import pytest
import yaml

from smcp_standalone.nats_config_file import parse_model
from tests.deploy.objects import WORKLOADS, Manifests, amount, containers, environment, pod
from tests.deploy.policies import POLICIES
from tests.deploy.rendering import K8S, README, overlays, rendered, variants

once = functools.cache(rendered)


@functools.cache  # most objects are the same in all variants
def validate(text: str) -> None:
    kubernetes_validate.validate(json.loads(text), "1.32", strict=True)


@pytest.mark.parametrize("variant", variants())
def test_every_combination_is_valid_and_keeps_every_policy(variant: str) -> None:
    manifests = once(variant)
    for each in manifests.objects:
        validate(json.dumps(each, sort_keys=True))
    assert {name: found for name, policy in POLICIES.items() if (found := policy(manifests))} == {}


def test_the_top_kustomization_is_the_dev_overlay() -> None:
    assert once("top").objects == once("dev").objects


def test_each_overlay_names_all_images_in_one_block() -> None:
    for overlay in overlays():
        [file] = (K8S / "overlays" / overlay).glob("kustomization.yaml")
        kustomization = yaml.safe_load(file.read_text())
        told = {f"{image['newName']}:{image['newTag']}" for image in kustomization["images"]}
        assert told == set(_images(once(overlay)))


def test_the_dev_overlay_fits_on_a_node_with_two_processors() -> None:
    """What a cluster of kind runs of its own asks for 950m on such a node."""
    assert _asked("dev", "cpu") <= Decimal("1.0")
    assert _asked("dev", "memory") <= 2 * 1024**3


def test_the_readme_loads_exactly_the_images_built_here() -> None:
    [loaded] = re.findall(r"kind load docker-image (.+?)  ", README.read_text(encoding="utf-8"))
    assert set(loaded.split()) == {image for image in _images(once("dev")) if image.startswith("smcp")}


def test_nats_advertises_node_names_that_clients_can_resolve() -> None:
    """So they hear of a node that left, and learn no address that is another pod's tomorrow."""
    manifests = once("prod")
    nats = manifests.named("StatefulSet", "smcp-nats")
    assert nats is not None
    offices = parse_model((K8S / "overlays" / "prod" / "offices.yaml").read_text(encoding="utf-8"))
    told = str(offices.client_advertise).removeprefix("$")
    variables = [entry["name"] for entry in pod(nats)["containers"][0]["env"]]
    assert variables.index("POD_NAME") < variables.index(told), "what refers to another variable comes after it"
    [container] = [each for each in containers(manifests) if each.workload is nats and not each.first]
    name = environment(container, manifests)[told]
    nodes = [name.replace("$(POD_NAME)", f"smcp-nats-{number}") for number in range(nats["spec"]["replicas"])]
    [known] = {
        config["data"]["SMCP_NATS_URL"] for config in manifests.of("ConfigMap") if "SMCP_NATS_URL" in config["data"]
    }
    assert [f"tls://{node}" for node in nodes] == known.split(",")


def _images(manifests: Manifests) -> list[str]:
    specs = [each["spec"]["template"]["spec"] for each in manifests.objects if "template" in each.get("spec", {})]
    return [one["image"] for spec in specs for one in (*spec.get("initContainers", []), *spec["containers"])]


def _asked(variant: str, what: str) -> Decimal:
    """For how much all pods ask: the most of any first step, or all that run side by side."""
    total = Decimal(0)
    for workload in once(variant).of(*WORKLOADS):
        asked = [
            [amount(one["resources"]["requests"][what]) for one in pod(workload).get(kind, [])]
            for kind in ("initContainers", "containers")
        ]
        total += max(max(asked[0], default=Decimal(0)), sum(asked[1], Decimal(0))) * workload["spec"].get("replicas", 1)
    return total
