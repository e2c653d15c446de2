"""Makes the Secrets of the demo, once: NATS's permissions, a credential for each kind of process, and an API key.

    python -I make_secrets.py OFFICES OFFICE      # in a pod whose account may create Secrets

All of it goes into one Secret first (`smcp-made`), at once; those that pods mount are made from it. So one that is
stopped half-way is finished by the next, and a second run changes nothing.
"""

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

MADE = "smcp-made"
FILES: Mapping[str, Mapping[str, str]] = {
    "smcp-nats": {"nats-server.conf": "nats-server.conf"},
    "smcp-registry": {"nats.json": "registry.json"},
    "smcp-gateway": {"nats.json": "gateway.json", "keys.json": "keys.json"},
    "smcp-computer": {"nats.json": "computer.json"},
    "smcp-mcp": {"keys.json": "keys.json", "token": "mcp-token"},
    "smcp-agent": {"token": "token"},
    "smcp-operator": {"nats.json": "operator.json"},
}
"""Which Secret has which keys, and which file of all is each."""

_TIMEOUT_S = 30.0
_MISSING, _EXISTS = 404, 409


class Cluster:
    """The API of the cluster, in the namespace of this pod's account."""

    def __init__(self, account: Path, address: str) -> None:
        self._token = (account / "token").read_text()
        namespace = (account / "namespace").read_text()
        self._secrets = f"https://{address}/api/v1/namespaces/{namespace}/secrets"
        self._trust = ssl.create_default_context(cafile=account / "ca.crt")

    def secret(self, name: str) -> dict[str, str] | None:
        """What a Secret holds, in base64; None where it is not there."""
        try:
            content = self._ask("GET", f"{self._secrets}/{name}")
        except urllib.error.HTTPError as error:
            if error.code == _MISSING:
                return None
            raise
        data = content["data"]
        return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}

    def create(self, name: str, data: Mapping[str, str]) -> bool:
        """Whether it was made now; one that is there stays as it is."""
        metadata = {"name": name, "labels": {"app.kubernetes.io/part-of": "a2c-smcp"}}
        body = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": dict(data)}
        try:
            self._ask("POST", self._secrets, json.dumps(body).encode())
        except urllib.error.HTTPError as error:
            if error.code == _EXISTS:
                return False
            raise
        return True

    def _ask(self, method: str, url: str, body: bytes | None = None) -> dict[str, object]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 -- https, see above
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._trust) as answer:  # noqa: S310
            content = json.load(answer)
        if not isinstance(content, dict):
            raise TypeError("the API server does not answer with an object")
        return content


def made_now(offices: Path, office: str) -> dict[str, str]:
    """Everything anew, in base64, by file."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        subprocess.run(["smcp", "nats-config", str(offices), "--out", directory], check=True, stdout=sys.stderr)  # noqa: S603, S607
        keys = ["smcp", "keys", "add", "--file", str(out / "keys.json"), "--office", office, "--role", "agent"]
        own = {
            "token": ["--name", "*", "--subject", "demo"],
            "mcp-token": ["--name", "smcp-mcp", "--delegates"],
        }
        for file, options in own.items():
            key = subprocess.run([*keys, *options], check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
            (out / file).write_text(key.stdout.strip())
        files = [*(out / file for file in ("nats-server.conf", "keys.json", *own)), *(out / "creds").glob("*.json")]
        return {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}


def main(offices: Path, office: str, cluster: Cluster) -> None:
    """Make what is missing, and say what was made.

    Raises:
        SystemExit: what was made formerly is not enough; nothing is made then.
        URLError: the API server cannot be reached, or refuses (HTTPError).
    """
    made = cluster.secret(MADE)
    if made is None:
        made = made_now(offices, office)
        if not cluster.create(MADE, made):
            made = cluster.secret(MADE) or made
    if missing := {file for files in FILES.values() for file in files.values()} - made.keys():
        names = " ".join((MADE, *FILES))
        sys.exit(
            f"the Secret {MADE} is of an older version, and has no {', '.join(sorted(missing))}. To make all anew: "
            f"kubectl delete secret {names}, and restart what uses them"
        )
    for name, files in FILES.items():
        new = cluster.create(name, {key: made[file] for key, file in files.items()})
        print(f"{name}: {'made' if new else 'is there'}")  # noqa: T201


if __name__ == "__main__":
    account = Path(os.environ.get("SERVICE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    try:
        main(Path(sys.argv[1]), sys.argv[2], Cluster(account, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
    except urllib.error.HTTPError as error:
        with error:
            sys.exit(f"the API server refuses {error.url}: {error.code} {error.reason}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"the API server at {host}:{port}: {error.reason}")
