"""`kubectl kustomize` of what stands in deploy/k8s, and of every combination of its components."""

import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.deploy import demo_secrets
from tests.deploy.objects import Manifests, Object

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
README = K8S / "README.md"
KUBECTL = Path(sys.executable).with_name("kubectl")

_SCALING = ("hpa-cpu", "hpa-metrics")
_SECRET = re.compile(r"kubectl create secret (generic|tls) ([a-z0-9-]+)((?:\s+\\?\s*--\S+)*)")
_KEY = re.compile(r"--from-file=(?:([A-Za-z0-9.-]+)=)?(\S+)")


def kustomize(directory: Path) -> list[Object]:
    done = subprocess.run([KUBECTL, "kustomize", directory], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each is not None]


@functools.cache
def overlays() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in (K8S / "overlays").glob("*/kustomization.yaml")))


def variants() -> list[str]:
    """Every overlay as it is, what stands at the top, and `prod` with every choice of components."""
    choices = ["+".join(("prod", *chosen)) for chosen in _choices()]
    return ["top", *overlays(), *choices]


def _choices() -> list[tuple[str, ...]]:
    computers = [("computer",), ("computer-nodes",), ("computer", "computer-nodes"), ()]
    scaling: list[tuple[str, ...]] = [(), *((one,) for one in _SCALING)]
    return [(*some, "nats-cluster", *scale) for some, scale in itertools.product(computers, scaling)]


def rendered(variant: str) -> Manifests:
    """One of `variants`, with the Secrets that it may count on."""
    objects = _objects(variant)
    if variant in ("top", "dev"):
        offices = Manifests(objects).config("smcp-secrets")["offices.yaml"]
        return Manifests(objects, demo_secrets.keys(), offices)
    return Manifests(objects, documented_secrets(), (K8S / "overlays" / "prod" / "offices.yaml").read_text("utf-8"))


def _objects(variant: str) -> list[Object]:
    if variant == "top":
        return kustomize(K8S)
    overlay, *chosen = variant.split("+")
    directory = K8S / "overlays" / overlay
    if not chosen:
        return kustomize(directory)
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    with tempfile.TemporaryDirectory() as made:
        # Kustomize takes relative paths alone.
        beside = Path(made).resolve()
        kustomization["resources"] = [_relative(directory, one, beside) for one in kustomization["resources"]]
        kustomization["components"] = [os.path.relpath(K8S / "components" / one, beside) for one in chosen]
        for file in directory.glob("*.yaml"):
            if file.name != "kustomization.yaml":
                (beside / file.name).write_bytes(file.read_bytes())
        (beside / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return kustomize(beside)


def _relative(directory: Path, resource: str, beside: Path) -> str:
    if resource.startswith(".."):
        return os.path.relpath((directory / resource).resolve(), beside)
    return Path(resource).name


@functools.cache
def documented_secrets() -> dict[str, frozenset[str]]:
    """The Secrets that the README says how to make, and their keys."""
    found = {}
    for kind, name, options in _SECRET.findall(README.read_text(encoding="utf-8")):
        keys = {key or Path(path).name for key, path in _KEY.findall(options)}
        found[name] = frozenset(keys | ({"tls.crt", "tls.key"} if kind == "tls" else set()))
    return found
