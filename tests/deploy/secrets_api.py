"""The part of Kubernetes' API that the demo's Job uses: a namespace's Secrets, over TLS, for who holds a token.

It stands in for the API server in tests: what it takes, how it refuses (a `Status`) and who may do what (the Role of
the manifests) are as Kubernetes' API reference and RBAC say it.
"""

import base64
import binascii
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from smcp_testing.certificates import Authority
from tests.deploy.objects import Manifests, Object

_TOKEN: Final = "the-token-of-the-account"
_NAMESPACE: Final = "smcp-dev"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
_LARGEST: Final = 1024 * 1024
"""Bytes of all that a Secret holds."""


class Refused(Exception):
    """It is answered with a `Status` of that code."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status: Object = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        }  # fmt: skip


class SecretsApi:
    """`/api/v1/namespaces/smcp-dev/secrets`: read one, create one."""

    def __init__(self, manifests: Manifests) -> None:
        role = manifests.named("Role", "smcp-secrets")
        assert role is not None
        self._rules = role["rules"]
        self.secrets: dict[str, dict[str, str]] = {}
        """What each holds, in base64, by name and key."""
        self.asked: list[str] = []
        """Verbs and names of all requests, also of those that were refused."""

    def files(self, name: str) -> dict[str, bytes]:
        """What one holds. Raises KeyError where it is not there."""
        return {key: base64.b64decode(value) for key, value in self.secrets[name].items()}

    @asynccontextmanager
    async def open(self, account: Path) -> AsyncIterator[dict[str, str]]:
        """Serve it on a free port of 127.0.0.1.

        Writes into `account` what a pod finds of its account (token, namespace, the authority's certificate), and
        yields the variables that tell the pod where the API is.
        """
        authority = Authority(account)
        made = authority.certificate("127.0.0.1")
        (account / "token").write_text(_TOKEN)
        (account / "namespace").write_text(_NAMESPACE)
        trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trust.load_cert_chain(made.cert, made.key)
        app = web.Application(middlewares=[_with_status])
        path = f"/api/v1/namespaces/{_NAMESPACE}/secrets"
        app.add_routes([web.get(path + "/{name}", self._get), web.post(path, self._create)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust).start()
            port = str(runner.addresses[0][1])
            yield {
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": port,
                "SERVICE_ACCOUNT": str(account),
            }
        finally:
            await runner.cleanup()

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._authorise(request, "get", name)
        if name not in self.secrets:
            raise Refused(404, "NotFound", f'secrets "{name}" not found')
        return web.json_response(_secret(name, self.secrets[name]))

    async def _create(self, request: web.Request) -> web.Response:
        self._authorise(request, "create", None)
        if request.content_type != "application/json":
            raise Refused(415, "UnsupportedMediaType", f"the body is {request.content_type}")
        name, data = _checked(await request.json())
        if name in self.secrets:
            raise Refused(409, "AlreadyExists", f'secrets "{name}" already exists')
        self.secrets[name] = data
        return web.json_response(_secret(name, data), status=201)

    def _authorise(self, request: web.Request, verb: str, name: str | None) -> None:
        """A rule that names what it is for never lets create: a name is not known then."""
        self.asked.append(f"{verb} {name or ''}".strip())
        if request.headers.get("Authorization") != f"Bearer {_TOKEN}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        for rule in self._rules:
            of_secrets = "" in rule["apiGroups"] and "secrets" in rule["resources"]
            if of_secrets and verb in rule["verbs"] and ("resourceNames" not in rule or name in rule["resourceNames"]):
                return
        raise Refused(403, "Forbidden", f'secrets "{name}" is forbidden: cannot {verb} resource "secrets"')


@web.middleware
async def _with_status(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except Refused as refused:
        return web.json_response(refused.status, status=refused.status["code"])
    return response


def _checked(body: Object) -> tuple[str, dict[str, str]]:
    """Name and data of a Secret that is to be made."""
    if (body.get("apiVersion"), body.get("kind")) != ("v1", "Secret"):
        raise Refused(400, "BadRequest", f"this is a {body.get('apiVersion')} {body.get('kind')}")
    metadata, data = body["metadata"], dict(body.get("data", {}))
    if metadata.get("namespace", _NAMESPACE) != _NAMESPACE:
        raise Refused(400, "BadRequest", "the namespace of the object does not match the namespace of the request")
    try:
        size = sum(len(base64.b64decode(value, validate=True)) for value in data.values())
    except binascii.Error as error:
        raise Refused(400, "BadRequest", f"illegal base64 data: {error}") from error
    if not _NAME.fullmatch(metadata["name"]) or not all(map(_KEY.fullmatch, data)) or size > _LARGEST:
        raise Refused(422, "Invalid", f'Secret "{metadata["name"]}" is invalid')
    return metadata["name"], data


def _secret(name: str, data: dict[str, str]) -> Object:
    metadata = {"name": name, "namespace": _NAMESPACE}
    return {"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "type": "Opaque", "data": data}
