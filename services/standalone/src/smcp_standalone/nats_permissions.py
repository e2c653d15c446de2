"""What each kind of process may do on NATS (design: the sender is in the subject, permissions bind it).

A subscription's entry `"subject queue"` allows it in that queue group only, so nobody can listen in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from smcp_bus.subjects import HOSTS, HOSTS_ASSERT_ALL, HOSTS_LEASE_ALL, OWNER_QUEUE, REGISTRY_QUEUE, ROOT
from smcp_proto.names import encode_name

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
