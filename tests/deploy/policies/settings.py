"""Every variable is one that its process reads, and all together are a configuration that it takes."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import get_args
from unittest.mock import patch

from smcp_auth.settings import AuthSettings
from smcp_computer.settings import ComputerSettings, check_connection
from smcp_service.settings import (
    ServiceSettings,
    SettingsError,
    is_loopback,
    load_settings,
    variables,
)
from smcp_testing.certificates import Authority
from tests.deploy.objects import Container, Manifests, Object, containers, environment, pod
from tests.deploy.programs import IMAGE_OF, command_of, image_name, is_command, settings_of

_OF_OTEL = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG")
_OF_OTHERS = {"nats": {"POD_NAME", "NATS_ADVERTISE"}, "jaeger": {"JAEGER_LISTEN_HOST"}, "agent": {"SMCP_TOKEN"}}
"""The settings of other containers and of the Agent."""
_PROGRAMS = ("sh", "python")


def settings(manifests: Manifests) -> list[str]:
    problems = []
    for container in containers(manifests):
        command = command_of(container.spec)
        if command in IMAGE_OF:
            if not is_command(command):
                problems.append(f"{container.where}: there is no command {command}")
            if image_name(container.spec) not in IMAGE_OF[command]:
                problems.append(f"{container.where}: {container.spec['image']} has no {command}")
        elif command and command not in _PROGRAMS:
            problems.append(f"{container.where}: there is no command {command}")
        kind = settings_of(container.spec)
        if kind is None:
            known = _OF_OTHERS.get(container.spec["name"], set())
            unread = set(environment(container, manifests)) - known
            problems += [f"{container.where}: {name} is read by nobody" for name in sorted(unread)]
        else:
            problems += [f"{container.where}: {why}" for why in _of_ours(container, manifests, kind)]
    for workload in manifests.of("Deployment", "DaemonSet"):
        problems += _checked_first(workload)
    return problems


def _of_ours(container: Container, manifests: Manifests, kind: type[ServiceSettings]) -> Iterator[str]:
    given = environment(container, manifests)
    ours = {name: value for name, value in given.items() if name.startswith("SMCP_")}
    yield from (f"{name} is read by nobody" for name in sorted(ours.keys() - variables(kind)))
    used = " ".join(given.values())
    for name in sorted(set(given) - set(ours) - set(_OF_OTEL)):
        if f"$({name})" not in used:
            yield f"{name} is read by nobody"
    files = {name: value for name, value in ours.items() if name in _files(kind)}
    for name, value in files.items():
        if not any(_holds(mount, value, container, manifests) for mount in container.spec["volumeMounts"]):
            yield f"{name}: nothing is mounted that has {value}"
    told = ours | dict.fromkeys(files, str(_stands_for()))
    others = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_")}
    with patch.dict(os.environ, others | told, clear=True):
        try:
            read = load_settings(kind)
            if isinstance(read, ComputerSettings):
                check_connection(read)
        except SettingsError as error:
            yield from error.problems
            return
    if (
        isinstance(read, AuthSettings)
        and not read.auth_configured
        and not is_loopback(ours.get("SMCP_GATEWAY_HOST", ours.get("SMCP_MCP_HOST", "")))
    ):
        yield "nothing says who may connect"


@functools.cache
def _stands_for() -> Path:
    """A file for each that is mounted: of certificates, as one of them has to be."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory)
    return Authority(directory).ca


def _files(kind: type[ServiceSettings]) -> set[str]:
    """The variables that name files."""
    return {
        name
        for name in variables(kind)
        for annotation in [kind.model_fields[name.removeprefix("SMCP_").lower()].annotation]
        if annotation is Path or Path in get_args(annotation) or "Path" in str(annotation)
    }


def _holds(mount: Mapping[str, str], file: str, container: Container, manifests: Manifests) -> bool:
    path, at = PurePosixPath(file), PurePosixPath(mount["mountPath"])
    if not path.is_relative_to(at):
        return False
    [volume] = [one for one in pod(container.workload)["volumes"] if one["name"] == mount["name"]]
    if "secret" in volume:
        return str(path.relative_to(at)) in {item["path"] for item in volume["secret"]["items"]}
    return str(path.relative_to(at)) in manifests.config(volume.get("configMap", {}).get("name", ""))


def _checked_first(workload: Object) -> list[str]:
    """A pod's settings are checked, all of them, before its process starts."""
    problems = []
    for main in pod(workload)["containers"]:
        if settings_of(main) is None:
            continue
        wanted = {key: main.get(key) for key in ("image", "command", "envFrom", "env", "volumeMounts")}
        wanted["args"] = [*main.get("args", []), "--check-config"]
        checks = [{key: one.get(key) for key in wanted} for one in pod(workload).get("initContainers", [])]
        if wanted not in checks:
            title = f"{workload['kind']} {workload['metadata']['name']}"
            problems.append(f"{title}: no step before {main['name']} checks its settings with --check-config")
    return problems
