"""No secret stands in a manifest: what is one comes from a Secret."""

import re
from collections.abc import Iterator
from typing import Final

from tests.deploy.objects import Manifests, containers, environment, title

_LOGIN: Final = re.compile(r"\b\w+://[^\s/@]+@")
_SECRET: Final = re.compile(r"SMCP_(?:TOKEN|AUTH_SECRET|INPUT_\w+)")
_IN_THE_CLUSTER: Final = "known-in-the-cluster"


def secrets(manifests: Manifests) -> list[str]:
    problems = [
        f"{title(config)}: {key} has a URL with a password"
        for config in manifests.of("ConfigMap")
        for key, text in config["data"].items()
        if _LOGIN.search(text)
    ]
    return [*problems, *_told(manifests)]


def _told(manifests: Manifests) -> Iterator[str]:
    for container in containers(manifests):
        for name, value in environment(container, manifests).items():
            if _SECRET.fullmatch(name) and value != _IN_THE_CLUSTER:
                yield f"{container.where}: {name} is a secret, and stands in the manifest"
        for text in (entry.get("value", "") for entry in container.spec.get("env", [])):
            if _LOGIN.search(text):
                yield f"{container.where}: a variable has a URL with a password"
