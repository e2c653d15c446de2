"""Every rendering of deploy/k8s is valid for Kubernetes, and keeps every policy."""

import functools
import json

import kubernetes_validate
import pytest
import yaml

from tests.deploy.objects import Manifests
from tests.deploy.policies import POLICIES
from tests.deploy.rendering import K8S, overlays, rendered, variants

once = functools.cache(rendered)


@functools.cache  # most objects are the same in all variants
def validate(text: str) -> None:
    kubernetes_validate.validate(json.loads(text), "1.32", strict=True)


@pytest.mark.parametrize("variant", variants())
def test_it_is_valid_and_keeps_every_policy(variant: str) -> None:
    manifests = once(variant)
    for each in manifests.objects:
        validate(json.dumps(each, sort_keys=True))
    assert {name: found for name, policy in POLICIES.items() if (found := policy(manifests))} == {}


def test_what_stands_at_the_top_is_the_overlay_to_try() -> None:
    assert once("top").objects == once("dev").objects


def test_each_overlay_says_where_each_of_its_images_comes_from_in_one_block() -> None:
    for overlay in overlays():
        [file] = (K8S / "overlays" / overlay).glob("kustomization.yaml")
        kustomization = yaml.safe_load(file.read_text())
        told = {f"{image['newName']}:{image['newTag']}" for image in kustomization["images"]}
        assert told == set(_images(once(overlay)))


def test_rendering_twice_gives_the_same() -> None:
    assert rendered("prod").objects == once("prod").objects


def test_nothing_is_templated_elsewhere() -> None:
    inner = [*(K8S / "base").glob("kustomization.yaml"), *(K8S / "components").glob("*/kustomization.yaml")]
    assert not [file for file in inner if "images" in yaml.safe_load(file.read_text())]


def _images(manifests: Manifests) -> list[str]:
    specs = [each["spec"]["template"]["spec"] for each in manifests.objects if "template" in each.get("spec", {})]
    return [one["image"] for spec in specs for one in (*spec.get("initContainers", []), *spec["containers"])]
