"""kubectl takes each of its commands on a page, and the files and objects that these name exist."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.rendering import KUBECTL, rendered
from tests.pages.markdown import ROOT, commands, pages, spans

PRODUCTION: Final = "smcp"
"""The namespace of commands without one, as the README of `deploy/k8s` sets it."""


def kubectl_commands(page: Path) -> list[str]:
    """Those in its blocks and in its text."""
    found = [*map(" ".join, commands(page)), *spans(page)]
    return [command for command in found if command.startswith("kubectl ")]


PAGES: Final = {page: found for page in pages() if (found := kubectl_commands(page))}


@cache
def objects() -> dict[str, set[str]]:
    """`KIND/NAME` of what the overlays apply and of the Secrets that they need, by namespace."""
    found = {}
    for overlay in ("dev", "prod"):
        manifests = rendered(overlay)
        [namespace] = (each["metadata"]["name"] for each in manifests.of("Namespace"))
        applied = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in manifests.objects}
        found[namespace] = applied | {f"secret/{name}" for name in manifests.secrets}
    return found


def named_objects(command: str) -> list[str]:
    """As `KIND/NAME`."""
    named = re.findall(r" ([a-z]+/[a-z0-9-]+)(?= |$)", re.sub(" -[fk] \\S+", "", command))
    for kind, names in re.findall(r" (?:get|delete) (?!namespace)([a-z]+)((?: [a-z][a-z0-9-]*)+)", command):
        named += [f"{kind}/{name}" for name in names.split()]
    return [re.sub("^svc/", "service/", each) for each in named]


def problem(command: str) -> str:
    """Why a command cannot run; empty where it can."""
    shown = subprocess.run(
        [KUBECTL, *command.split()[1:], "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    if shown.returncode or " SUBCOMMAND [options]" in shown.stdout:
        return shown.stderr or "no such command"
    if missing := [path for path in re.findall(r" -[fk] (\S+)", command) if not (ROOT / path).exists()]:
        return f"no such file: {missing}"
    [namespace] = re.findall(r" (?:-n|delete namespace) (\S+)", command) or [PRODUCTION]
    if namespace not in objects():
        return "no such namespace"
    return ", ".join(f"no {each}" for each in named_objects(command) if each not in objects()[namespace])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_kubectl_command_can_run(page: Path) -> None:
    assert {command: found for command in PAGES[page] if (found := problem(command))} == {}


@pytest.mark.parametrize(
    "command",
    [
        "kubectl aply -k deploy/k8s",
        "kubectl rollout restat statefulset/smcp-nats",
        "kubectl apply -k deploy/k9s",
        "kubectl apply --kustomise deploy/k8s",
        "kubectl -n smcp-def logs job/smcp-demo",
        "kubectl -n smcp-dev logs job/smcp-dem",
        "kubectl port-forward svc/smcp-nats-2 4222",
        "kubectl -n smcp-dev get secret smcp-agents -o yaml",
        "kubectl -n smcp-dev delete job smcp-secrets smcp-dem",
    ],
)
def test_a_kubectl_command_with_a_mistake_is_found(command: str) -> None:
    assert problem(command)
