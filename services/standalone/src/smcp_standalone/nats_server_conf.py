"""Renders nats-server's configuration with permissions and credentials, from the `NatsModel`. Pure.

In the configuration a secret stands as its bcrypt hash of the lowest cost (about 1 ms for each connection): cost
protects guessable secrets, and these are 256 random bits. The salt follows from the secret, so the same model and
secrets give the same text.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bcrypt

from smcp_bus.log_level import SUBJECT as LOG_LEVEL
from smcp_bus.subjects import (
    AUDIT_ALL,
    HOSTS,
    HOSTS_ASSERT_ALL,
    HOSTS_GATEWAY_LEASE_ALL,
    HOSTS_LEASE_ALL,
    OPERATORS,
    OPERATORS_ALL,
    OWNER_QUEUE,
    REGISTRY_QUEUE,
    ROOT,
)
from smcp_proto.member_names import encode_name
from smcp_proto.schemas.tools import MAX_TIMEOUT_S
from smcp_standalone.nats_config_file import Cluster, ComputerHost, NatsModel

PING_S: Final = 5
"""nats-server asks each client so often whether it is there; our clients do the same."""
PINGS: Final = 2
"""Pings without an answer after which a client is given up."""
_CLUSTER_USER: Final = "route"
_BCRYPT_COST: Final = 4
_BCRYPT_ALPHABET: Final = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_INBOX: Final = "_INBOX"
RESPONSE_EXPIRES_S: Final = MAX_TIMEOUT_S + 60
"""How long a Computer may answer: the longest call, and a minute."""
RESPONSES: Final = 512
"""Messages that a Computer may send to one reply subject: an answer, and the pulls or chunks of a body (32 MiB
are 64 to 128 of them; a larger SMCP_MAX_PAYLOAD has room too). nats-server keeps the same for each request
whatever the number."""


@dataclass(frozen=True, slots=True)
class Grant:
    """nats-server's permissions for the holder of a credential."""

    purpose: Mapping[str, Any]
    """Its service, and a Computer host's office and names. It stands in the credential's file, so that a process that
    was given another's says so before it connects."""
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    may_respond: bool = False
    """To reply subjects that it was asked on: `RESPONSES` times, for `RESPONSE_EXPIRES_S`."""


def inbox_prefix(credential: str) -> str:
    """The prefix of the subjects on which a credential receives answers: `_INBOX.<credential>`."""
    return f"{_INBOX}.{encode_name(credential)}"


def _computer(host: ComputerHost) -> Grant:
    """A host of Computers: it speaks as them, answers for them, and hears its office."""
    own, room = f"{HOSTS}.{encode_name(host.credential)}", f"{ROOT}.{encode_name(host.office)}"
    tokens = [encode_name(name) for name in host.computers]
    return Grant(
        {"kind": "computer", "office": host.office, "names": host.computers},
        publish=(
            *(f"{room}.server.computer.{token}.>" for token in tokens),
            f"{own}.*.lease",
        ),
        subscribe=(
            *(f"{room}.client.{token}.> {OWNER_QUEUE}" for token in tokens),
            f"{room}.notify.>",
            f"{own}.*.alive",
            LOG_LEVEL,
            f"{inbox_prefix(host.credential)}.>",
        ),
        may_respond=True,
    )


def _gateway(credential: str) -> Grant:
    """A gateway speaks for the members connected to it, and answers for Computers that speak Socket.IO only."""
    own = f"{HOSTS}.{encode_name(credential)}"
    return Grant(
        {"kind": "gateway"},
        publish=(
            f"{ROOT}.*.client.>",
            f"{ROOT}.*.server.>",
            f"{own}.*.gateway_lease",
            f"{own}.*.lease",  # an older gateway renews here
            f"{own}.*.assert",
            AUDIT_ALL,
            f"{_INBOX}.>",
        ),
        subscribe=(
            f"{ROOT}.*.notify.>",
            f"{ROOT}.*.client.> {OWNER_QUEUE}",
            f"{own}.*.alive",
            LOG_LEVEL,
            f"{inbox_prefix(credential)}.>",
        ),
    )


def _registry(credential: str) -> Grant:
    """The registry alone announces, and alone touches JetStream."""
    return Grant(
        {"kind": "registry"},
        publish=(
            f"{ROOT}.*.notify.>",
            AUDIT_ALL,
            f"{HOSTS}.*.*.alive",
            "$JS.API.>",
            "$KV.>",
            "$JS.ACK.>",
            f"{_INBOX}.>",
        ),
        subscribe=(
            f"{ROOT}.*.server.> {REGISTRY_QUEUE}",
            f"{HOSTS_LEASE_ALL} {REGISTRY_QUEUE}",
            f"{HOSTS_GATEWAY_LEASE_ALL} {REGISTRY_QUEUE}",
            f"{HOSTS_ASSERT_ALL} {REGISTRY_QUEUE}",
            LOG_LEVEL,
            f"{OPERATORS_ALL} {REGISTRY_QUEUE}",
            f"{inbox_prefix(credential)}.>",
        ),
    )


def _operator(credential: str) -> Grant:
    """An operator looks, and changes nothing but what is logged. It asks the registries, never JetStream: that
    answers on any subject that a request names, such as one that deletes the stream.
    """
    return Grant(
        {"kind": "operator"},
        publish=(LOG_LEVEL, f"{OPERATORS}.{encode_name(credential)}.*"),
        subscribe=(AUDIT_ALL, f"{inbox_prefix(credential)}.>"),
    )


@dataclass(frozen=True, slots=True)
class Login:
    """User and password for nats-server."""

    user: str
    secret: str


def new_secret() -> str:
    """256 random bits, in 43 characters (bcrypt reads 72)."""
    return secrets.token_urlsafe(32)


def users(credential: str) -> tuple[str, str]:
    """The names of NATS users that a credential may have, by turns.

    The name of a credential holds no '/', so the second is the name of no other one.
    """
    return credential, f"{credential}/2"


def new_login(credential: str, former: Login | None = None) -> Login:
    """A new secret, under another user's name than the former one: a user has one password, and for a time nats-server
    is to take both.
    """
    first, second = users(credential)
    return Login(second if former is not None and former.user == first else first, new_secret())


def grants(model: NatsModel) -> dict[str, Grant]:
    """By the name of a credential, in the order of the file."""
    return {
        **{name: _registry(name) for name in model.registries},
        **{name: _gateway(name) for name in model.gateways},
        **{name: _operator(name) for name in model.operators},
        **{host.credential: _computer(host) for host in model.computers},
    }


def render(model: NatsModel, logins: Mapping[str, Sequence[Login]], cluster_secret: str | None = None) -> str:
    """The text of `nats-server.conf`, whose values may be JSON.

    `logins` has those that are taken of each name of `grants(model)`; `cluster_secret` is what the nodes of a
    cluster tell each other, needed where the model has a cluster.
    """
    size, domain = model.jetstream.max_file, model.jetstream.domain
    tls = (
        None if model.tls is None else {"cert_file": model.tls.cert, "key_file": model.tls.key, "ca_file": model.tls.ca}
    )
    users = [_user(login, grant) for name, grant in grants(model).items() for login in logins[name]]
    lines = [
        "# Written by `smcp nats-config`; its next run writes it again. Change the YAML instead.",
        f"listen: {_json(model.listen)}",
        # A connection whose line was cut would be kept for four minutes, and be given messages in place of a new one.
        f'ping_interval: "{PING_S}s"',
        f"ping_max: {PINGS}",
        *_line("client_advertise", model.client_advertise),
        *_line("server_name", model.server_name),
        *_line("http", model.http),
        "jetstream {",
        f"  store_dir: {_json(model.jetstream.store_dir)}",
        *_line("  domain", domain),
        *([] if size is None else [f"  max_file_store: {size}"]),
        "}",
        *_line("tls", tls),
        *_line("cluster", model.cluster and _cluster(model.cluster, tls, cluster_secret)),
        *_line("authorization", {"users": users}),
        "",
    ]
    return "\n".join(lines)


def credential_file(name: str, login: Login, purpose: Mapping[str, Any]) -> str:
    """The JSON that a process reads from `SMCP_NATS_CREDS`."""
    user = {} if login.user == name else {"user": login.user}
    return _json({"name": name, **user, "secret": login.secret, "inbox_prefix": inbox_prefix(name), **purpose}) + "\n"


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
        "routes": [f"nats://{_CLUSTER_USER}:{secret}@{route}" for route in cluster.routes],
        "no_advertise": not cluster.advertise,
        # In a cluster nats-server asks for the other's certificate, and checks it, whatever its settings say.
        **({} if tls is None else {"tls": tls}),
    }


def _user(login: Login, grant: Grant) -> dict[str, Any]:
    permissions: dict[str, Any] = {"publish": {"allow": grant.publish}, "subscribe": {"allow": grant.subscribe}}
    if grant.may_respond:
        permissions["allow_responses"] = {"max": RESPONSES, "expires": f"{RESPONSE_EXPIRES_S}s"}
    return {"user": login.user, "password": hash_secret(login.secret), "permissions": permissions}


def _line(key: str, value: object) -> list[str]:
    """Nothing for None. A text that begins with `$` is a variable of nats-server's environment, which is not quoted."""
    if value is None:
        return []
    return [f"{key}: {value if isinstance(value, str) and value.startswith('$') else _json(value)}"]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
