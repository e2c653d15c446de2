"""A process that stops is given the time that its settings promise it."""

from smcp_service.cli import LEAVING_GRACE_S
from smcp_service.settings import ServiceSettings
from tests.deploy.objects import Manifests, containers, environment, pod
from tests.deploy.programs import settings_of

_DEFAULT_S = ServiceSettings.model_fields["drain_s"].default


def grace(manifests: Manifests) -> list[str]:
    problems = []
    for container in containers(manifests):
        if container.first or settings_of(container.spec) is None:
            continue
        given = pod(container.workload)["terminationGracePeriodSeconds"]
        drain = float(environment(container, manifests).get("SMCP_DRAIN_S", _DEFAULT_S))
        command = container.spec.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        needed = drain + LEAVING_GRACE_S + float(command[1])
        if given <= needed:
            problems.append(f"{container.where}: may take {needed:g} s to stop, and is killed after {given} s")
    return problems
