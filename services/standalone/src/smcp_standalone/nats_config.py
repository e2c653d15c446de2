"""From the model of offices and hosts to nats-server's configuration, its permissions and its credentials. Pure.

In the configuration a secret stands as its bcrypt hash, so reading it gives nobody a login. The hash has the
lowest cost (4, about 1 ms; nats-server's default of 11 takes 100 ms of its CPU for each connection, which a
thousand hosts that come back at once cannot afford): cost protects guessable secrets, and these are 256 random
bits. The salt follows from the secret, so the same model and secrets give the same text.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bcrypt

from smcp_bus.subjects import HOSTS, HOSTS_ASSERT_ALL, HOSTS_LEASE_ALL, OWNER_QUEUE, REGISTRY_QUEUE, ROOT
from smcp_proto.member_names import encode_name
from smcp_standalone.nats_model import JetStream, NatsModel, Tls

PING_S: Final = 5
PINGS: Final = 2
"""nats-server asks each client so often (seconds) whether it is there, and gives it up when so many were not answered;
our clients do the same."""
CLUSTER_USER = "route"
_BCRYPT_COST = 4
_BCRYPT_ALPHABET = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


INBOX_ROOT: Final = "_INBOX"

LONGEST_CALL_S: Final = 3600
_RESPONSE_EXPIRES_S: Final = LONGEST_CALL_S + 60
_RESPONSES: Final = 512
"""Messages that a Computer may send to one reply subject: an answer, and the pulls or chunks of a body (32 MiB
are 64 to 128 of them; a larger SMCP_MAX_PAYLOAD has room too). nats-server keeps the same for each request
whatever the number."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of one credential, as nats-server understands them."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: int | None = None
    """How many messages it may send to a reply subject that it was asked on; None: to none."""
    responses_expire_s: int = _RESPONSE_EXPIRES_S


def inbox_prefix(credential: str) -> str:
    """Under which a credential receives answers: `_INBOX.<credential>`, its own."""
    return f"{INBOX_ROOT}.{encode_name(credential)}"


def computer(credential: str, office: str, names: Iterable[str]) -> Permissions:
    """A host of Computers: it speaks as them, answers for them, and hears its office."""
    own, room = f"{HOSTS}.{encode_name(credential)}", f"{ROOT}.{encode_name(office)}"
    tokens = [encode_name(name) for name in names]
    return Permissions(
        publish=(*(f"{room}.server.computer.{token}.>" for token in tokens), f"{own}.*.lease"),
        subscribe=(
            *(f"{room}.client.{token}.> {OWNER_QUEUE}" for token in tokens),
            f"{room}.notify.>",
            f"{own}.*.alive",
            f"{inbox_prefix(credential)}.>",
        ),
        responses=_RESPONSES,
    )


def gateway(credential: str) -> Permissions:
    """A gateway speaks for whoever is connected to it, and answers for Computers that speak Socket.IO only."""
    own = f"{HOSTS}.{encode_name(credential)}"
    return Permissions(
        publish=(
            f"{ROOT}.*.client.>",
            f"{ROOT}.*.server.>",
            f"{own}.*.lease",
            f"{own}.*.assert",
            f"{INBOX_ROOT}.>",
        ),
        subscribe=(
            f"{ROOT}.*.notify.>",
            f"{ROOT}.*.client.> {OWNER_QUEUE}",
            f"{own}.*.alive",
            f"{inbox_prefix(credential)}.>",
        ),
    )


def registry(credential: str) -> Permissions:
    """The registry alone announces, and alone touches JetStream."""
    return Permissions(
        publish=(
            f"{ROOT}.*.notify.>",
            f"{HOSTS}.*.*.alive",
            "$JS.API.>",
            "$KV.>",
            "$JS.ACK.>",
            f"{INBOX_ROOT}.>",
        ),
        subscribe=(
            f"{ROOT}.*.server.> {REGISTRY_QUEUE}",
            f"{HOSTS_LEASE_ALL} {REGISTRY_QUEUE}",
            f"{HOSTS_ASSERT_ALL} {REGISTRY_QUEUE}",
            f"{inbox_prefix(credential)}.>",
        ),
    )


@dataclass(frozen=True, slots=True)
class Login:
    """What the holder of a credential says to nats-server."""

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


def grants(model: NatsModel) -> dict[str, Permissions]:
    """What each credential may do, by its name, in the order of the file."""
    return {
        **{name: registry(name) for name in model.registry_credentials},
        **{name: gateway(name) for name in model.gateway_credentials},
        **{host.credential: computer(host.credential, host.office, host.computers) for host in model.computers},
    }


def render(model: NatsModel, logins: Mapping[str, Sequence[Login]], cluster_secret: str | None = None) -> str:
    """The text of `nats-server.conf`.

    `logins` has those that are taken of each name of `grants(model)`; `cluster_secret` is what the nodes of a
    cluster tell each other, needed where the model has a cluster.
    """
    lines = [
        "# Written by `smcp nats-config`; its next run writes it again. Change the YAML instead.",
        f"listen: {_quoted(model.listen)}",
        # A connection whose line was cut would be kept for four minutes, and be given messages in place of a new one.
        f'ping_interval: "{PING_S}s"',
        f"ping_max: {PINGS}",
    ]
    if model.client_advertise is not None:
        lines.append(f"client_advertise: {_quoted_or_variable(model.client_advertise)}")
    if model.server_name is not None:
        lines.append(f"server_name: {_quoted_or_variable(model.server_name)}")
    if model.http is not None:
        lines.append(f"http: {_quoted(model.http)}")
    lines += ["", *_jetstream(model.jetstream), ""]
    if model.tls is not None:
        lines += ["tls {", *_tls(model.tls), "}", ""]
    if model.cluster is not None:
        lines += _cluster(model, cluster_secret)
    lines += ["authorization {", "  users: ["]
    for name, permissions in grants(model).items():
        for login in logins[name]:
            lines += _user(login, permissions)
    lines += ["  ]", "}", ""]
    return "\n".join(lines)


def purposes(model: NatsModel) -> dict[str, dict[str, Any]]:
    """What each credential is for, by its name: its service, and a Computer host's office and names.

    It stands in the credential's file so that a process that was given another's says so before it connects; what
    the holder may do is up to the permissions alone.
    """
    return {
        **{name: {"kind": "registry"} for name in model.registry_credentials},
        **{name: {"kind": "gateway"} for name in model.gateway_credentials},
        **{
            host.credential: {"kind": "computer", "office": host.office, "names": host.computers}
            for host in model.computers
        },
    }


def credential_file(name: str, login: Login, purpose: Mapping[str, Any]) -> str:
    """The JSON that a process reads from `SMCP_NATS_CREDS`."""
    user = {} if login.user == name else {"user": login.user}
    prefix = inbox_prefix(name)
    content = {"name": name, **user, "secret": login.secret, "inbox_prefix": prefix, **purpose}
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def hash_secret(secret: str) -> str:
    """The bcrypt hash of `secret`, always the same one."""
    digest = hashlib.sha256(f"smcp nats-config salt {secret}".encode()).digest()
    # 21 characters of 6 bits and one that carries the last two of 128: `.`, `O`, `e` or `u`.
    salt = "".join(_BCRYPT_ALPHABET[byte & 63] for byte in digest[:21]) + ".Oeu"[digest[21] & 3]
    return bcrypt.hashpw(secret.encode(), f"$2a${_BCRYPT_COST:02d}${salt}".encode()).decode()


def _jetstream(jetstream: JetStream) -> list[str]:
    return [
        "jetstream {",
        f"  store_dir: {_quoted(jetstream.store_dir)}",
        *([] if jetstream.domain is None else [f"  domain: {_quoted(jetstream.domain)}"]),
        *([] if jetstream.max_file is None else [f"  max_file_store: {jetstream.max_file}"]),
        "}",
    ]


def _cluster(model: NatsModel, cluster_secret: str | None) -> list[str]:
    cluster = model.cluster
    if cluster is None or cluster_secret is None:
        raise ValueError("a cluster needs its secret")
    routes = ", ".join(_quoted(f"nats://{CLUSTER_USER}:{cluster_secret}@{route}") for route in cluster.routes)
    return [
        "cluster {",
        f"  name: {_quoted(cluster.name)}",
        f"  listen: {_quoted(cluster.listen)}",
        f"  authorization {{ user: {CLUSTER_USER}, password: {_quoted(cluster_secret)} }}",
        f"  routes: [ {routes} ]",
        *([] if cluster.advertise else ["  no_advertise: true"]),
        # In a cluster nats-server asks for the other's certificate, and checks it, whatever it is told.
        *(["  tls {", *(f"  {line}" for line in _tls(model.tls)), "  }"] if model.tls is not None else []),
        "}",
        "",
    ]


def _tls(tls: Tls) -> list[str]:
    return [
        f"  cert_file: {_quoted(tls.cert)}",
        f"  key_file: {_quoted(tls.key)}",
        f"  ca_file: {_quoted(tls.ca)}",
    ]


def _user(login: Login, permissions: Permissions) -> list[str]:
    lines = [
        "    {",
        f"      user: {_quoted(login.user)}",
        f"      password: {_quoted(hash_secret(login.secret))}",
        "      permissions: {",
        *_allow("publish", permissions.publish),
        *_allow("subscribe", permissions.subscribe),
    ]
    if permissions.responses is not None:
        expires = f"{permissions.responses_expire_s}s"
        lines.append(f"        allow_responses: {{ max: {permissions.responses}, expires: {_quoted(expires)} }}")
    return [*lines, "      }", "    }"]


def _allow(what: str, subjects: tuple[str, ...]) -> list[str]:
    return [
        f"        {what}: {{ allow: [",
        *(f"          {_quoted(subject)}" for subject in subjects),
        "        ] }",
    ]


def _quoted_or_variable(text: str) -> str:
    """Unquoted, nats-server takes `$NAME` from its environment."""
    return text if text.startswith("$") else _quoted(text)


def _quoted(text: str) -> str:
    """A string of nats-server's configuration. Names hold no control characters, so two escapes are enough."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
