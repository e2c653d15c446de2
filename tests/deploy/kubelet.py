"""As much of a kubelet as shows what pods do: it runs their commands as processes of this machine.

Commands, arguments, variables and files are those of the manifests, and Secrets those that were made. Only what this
machine has elsewhere is put in its place: paths of mounts, and addresses. Not shown: images, scheduling, the network.
"""

import asyncio
import base64
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.deploy.objects import Container, Manifests, containers, environment, pod
from tests.deploy.programs import HOME_IN_IMAGES

_BIN: Final = Path(sys.executable).parent
_WITH_PLACES: Final = ("computer.json", "nats-server.conf")
"""Files that name paths and addresses themselves."""
_REFERENCE: Final = re.compile(r"\$\((\w+)\)")


class Kubelet:
    """Lays volumes out as directories, and gives a container's command and variables with these in them."""

    def __init__(
        self, manifests: Manifests, secrets: Mapping[str, Mapping[str, str]], directory: Path, *path: Path
    ) -> None:
        """`secrets` has what each holds, in base64; `path` programs of images that are not in this environment."""
        self._manifests, self._secrets, self._directory = manifests, secrets, directory
        self._path = os.pathsep.join(map(str, (*path, _BIN, os.environ["PATH"])))
        self.places: dict[str, str] = {}
        """What stands for what."""

    def container(self, workload: str, name: str) -> Container:
        [found] = [
            each
            for each in containers(self._manifests)
            if each.workload["metadata"]["name"] == workload and each.spec["name"] == name
        ]
        return found

    def command(self, container: Container, **over: str) -> tuple[list[str], dict[str, str]]:
        """What is run, and with which variables; those of `over` are put over them as they are.

        Raises KeyError where a Secret is not there, or has not the key.
        """
        spec, places = container.spec, dict(self.places)
        for mount in spec["volumeMounts"]:
            places.setdefault(mount["mountPath"], str(self._directory_of(container, mount["name"])))
        for mount in spec["volumeMounts"]:
            self._lay_out(container, mount["name"], places)
        known = _expanded(environment(container, self._manifests) | over) | self._from_secrets(container)
        variables = {name: _placed(value, places) for name, value in known.items()} | over
        variables |= {"PATH": self._path, "HOME": places.get(HOME_IN_IMAGES, str(self._directory))}
        return [_placed(word, places) for word in (*spec.get("command", []), *spec.get("args", []))], variables

    def replace_pod(self, container: Container) -> None:
        """Do to the volumes what Kubernetes does between one pod of a workload and the next."""
        security = pod(container.workload)["securityContext"]
        for volume in pod(container.workload)["volumes"]:
            directory = self._directory_of(container, volume["name"])
            if "emptyDir" in volume:
                shutil.rmtree(directory)
            elif "persistentVolumeClaim" in volume and security.get("fsGroupChangePolicy") != "OnRootMismatch":
                for path in directory.rglob("*"):
                    path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))  # for `fsGroup`

    def _from_secrets(self, container: Container) -> dict[str, str]:
        wanted = {each["name"]: each.get("valueFrom", {}).get("secretKeyRef") for each in container.spec.get("env", [])}
        return {name: self._held(key["name"])[key["key"]].decode() for name, key in wanted.items() if key}

    def _held(self, secret: str) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self._secrets[secret].items()}

    def _directory_of(self, container: Container, volume: str) -> Path:
        directory: Path = self._directory / container.workload["metadata"]["name"] / volume
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _lay_out(self, container: Container, name: str, places: Mapping[str, str]) -> None:
        """Where it is not a volume of the pod, it is one that is claimed, and empty."""
        found = [each for each in pod(container.workload)["volumes"] if each["name"] == name]
        for file, content in self._files(*found).items() if found else ():
            text = content.decode()
            path = self._directory_of(container, name) / file
            path.write_text(_placed(text, places) if file in _WITH_PLACES else text)

    def _files(self, volume: Mapping[str, Any]) -> dict[str, bytes]:
        if "secret" in volume:
            held = self._held(volume["secret"]["secretName"])
            return {item["path"]: held[item["key"]] for item in volume["secret"]["items"]}
        if "configMap" in volume:
            return {key: text.encode() for key, text in self._manifests.config(volume["configMap"]["name"]).items()}
        return {}


def _expanded(variables: Mapping[str, str]) -> dict[str, str]:
    """With `$(NAME)` as the variable of that name."""
    return {
        name: _REFERENCE.sub(lambda found: variables.get(found[1], found[0]), value)
        for name, value in variables.items()
    }


def _placed(text: str, places: Mapping[str, str]) -> str:
    """With every path and address in its place; what was put there is not looked at again."""
    longest_first = sorted(places, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: places[found[0]], text) if places else text


async def run(
    command: list[str], variables: Mapping[str, str], *, stdin: str = "", timeout: float = 180
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that ends.

    Raises TimeoutError; the command is killed then.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(variables),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout):
            output, errors = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(), errors.decode()
