"""What an Ingress says is what ingress-nginx takes, and what clients of Socket.IO need of it."""

import re
from typing import Final

from smcp_gateway.http_server import PATH
from smcp_gateway.settings import GatewaySettings
from smcp_gateway.sockets.socketio_server import HEADROOM
from tests.deploy.objects import Manifests, Object, title

_NGINX: Final = "nginx.ingress.kubernetes.io/"
_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9/_-]*")
"""All that ingress-nginx takes as an exact path or a prefix (strict-validate-path-type)."""
_MEBIBYTE: Final = 1024 * 1024
_LARGEST_BODY: Final = GatewaySettings.model_fields["max_payload"].default + HEADROOM
_SILENT_S: Final = 60
"""A client says something more often than that."""


def ingress(manifests: Manifests) -> list[str]:
    return [f"{title(one)}: {why}" for one in manifests.of("Ingress") for why in (*_paths(one), *_notes(one))]


def _paths(one: Object) -> list[str]:
    problems = []
    for rule in one["spec"]["rules"]:
        for path in rule["http"]["paths"]:
            if path["pathType"] != "ImplementationSpecific" and not _PLAIN_PATH.fullmatch(path["path"]):
                problems.append(f"the path {path['path']} is refused by ingress-nginx as {path['pathType']}")
            if path["path"] != PATH:
                problems.append(f"the path {path['path']} is not for the outside, or not answered")
    return problems


def _notes(one: Object) -> list[str]:
    notes = {name.removeprefix(_NGINX): value for name, value in one["metadata"]["annotations"].items()}
    problems = []
    if notes.get("upstream-hash-by") != "$binary_remote_addr":
        problems.append("a client that polls is not sent to the same gateway again")
    size = re.fullmatch(r"(\d+)m", notes.get("proxy-body-size", ""))
    if size is None or int(size[1]) * _MEBIBYTE < _LARGEST_BODY:
        problems.append("proxy-body-size is below what gateways take, so that nginx answers what they would")
    problems += [
        f"{name} cuts off a client that is silent for a while"
        for name in ("proxy-read-timeout", "proxy-send-timeout")
        if int(notes.get(name, 0)) <= _SILENT_S
    ]
    if notes.get("proxy-buffering") != "off":
        problems.append("answers wait in the proxy")
    return problems
