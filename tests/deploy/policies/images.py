"""Every image has a tag that says what it is, and no container of ours is of an image that we do not build."""

import re

from tests.deploy.objects import Manifests, containers

_BUILT = re.compile(r"(.*/)?(smcp|smcp-gateway|smcp-registry|smcp-computer|smcp-computer-demo)")
_OF_OTHERS = ("nats", "jaegertracing/jaeger")


def images(manifests: Manifests) -> list[str]:
    problems = []
    for container in containers(manifests):
        name, _, tag = _split(container.spec["image"])
        if not tag or tag == "latest":
            problems.append(f"{container.where}: {container.spec['image']} may be another image tomorrow")
        if not _BUILT.fullmatch(name) and name not in _OF_OTHERS:
            problems.append(f"{container.where}: nobody builds {name}")
        if container.spec.get("imagePullPolicy") != "IfNotPresent":
            problems.append(f"{container.where}: imagePullPolicy has to be IfNotPresent: images may have been loaded")
    return problems


def _split(image: str) -> tuple[str, str, str]:
    """Name and tag, or digest."""
    if "@" in image:
        return image.partition("@")
    head, colon, tag = image.rpartition(":")
    return (head, colon, tag) if colon and "/" not in tag else (image, "", "")
