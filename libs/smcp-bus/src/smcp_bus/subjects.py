"""Every subject of the system, built and taken apart in this one file.

    smcp.v1.<office>.client.<computer>.<verb>           request   gateway → the owner of that Computer
    smcp.v1.<office>.server.<role>.<name>.<verb>        request   a member → registry (queue group `registry`)
    smcp.v1.<office>.notify.<verb>                      publish   registry only → everyone in the office
    smcp.hosts.v1.<credential>.<process>.<verb>         request   a process's lease, its members; `alive` asked of it

Names stand encoded in them (`smcp_proto.member_names`), so each is one token.
"""

from dataclasses import dataclass
from typing import Final, cast, get_args

from smcp_proto.member_names import (
    AgentName,
    ComputerName,
    CredentialName,
    OfficeId,
    ProcessId,
    Role,
    decode_name,
    encode_name,
)

ROOT: Final = "smcp.v1"
HOSTS: Final = "smcp.hosts.v1"

OWNER_QUEUE: Final = "owner"
REGISTRY_QUEUE: Final = "registry"

SERVER_ALL: Final = f"{ROOT}.*.server.*.*.*"
"""What registries serve: every `server:*` event of every member."""
HOSTS_LEASE_ALL: Final = f"{HOSTS}.*.*.lease"
HOSTS_ASSERT_ALL: Final = f"{HOSTS}.*.*.assert"


def client(office: str, computer: str, verb: str) -> str:
    """Ask the owner of a Computer."""
    return f"{ROOT}.{encode_name(office)}.client.{encode_name(computer)}.{verb}"


def client_all(office: str, computer: str) -> str:
    """What the owner of a Computer serves."""
    return f"{ROOT}.{encode_name(office)}.client.{encode_name(computer)}.*"


def server(office: str, role: Role, name: str, verb: str) -> str:
    """Ask the registry, as a member (or as one who wants to become one)."""
    return f"{ROOT}.{encode_name(office)}.server.{role}.{encode_name(name)}.{verb}"


def notify(office: str, verb: str) -> str:
    """Where the registry tells everyone in an office."""
    return f"{ROOT}.{encode_name(office)}.notify.{verb}"


def notify_all(office: str) -> str:
    """What everyone in an office listens to."""
    return f"{ROOT}.{encode_name(office)}.notify.*"


def hosts(credential: str, process: str, verb: str) -> str:
    """Ask the registry about a process of that credential (`lease`, `assert`), or the process (`alive`)."""
    return f"{HOSTS}.{encode_name(credential)}.{process}.{verb}"


@dataclass(frozen=True, slots=True)
class ServerSubject:
    """Who asks the registry for what: read from the subject, which NATS permissions bind to the sender."""

    office: OfficeId
    role: Role
    name: ComputerName | AgentName
    verb: str


@dataclass(frozen=True, slots=True)
class ClientSubject:
    """Which Computer is asked for what."""

    office: OfficeId
    computer: ComputerName
    verb: str


@dataclass(frozen=True, slots=True)
class HostSubject:
    """Which process asks or is asked, and for what; NATS permissions bind the credential to the sender."""

    credential: CredentialName
    process: ProcessId
    verb: str


def parse_server(subject: str) -> ServerSubject:
    """Raises ValueError where the subject is not of the form."""
    root, version, office, kind, role, name, verb = _split(subject, 7)
    if f"{root}.{version}" != ROOT or kind != "server" or role not in get_args(Role):
        raise ValueError("not a subject of the registry")
    sender = decode_name(name)
    return ServerSubject(
        office=OfficeId(decode_name(office)),
        role=cast("Role", role),
        name=AgentName(sender) if role == "agent" else ComputerName(sender),
        verb=verb,
    )


def parse_client(subject: str) -> ClientSubject:
    """Raises ValueError where the subject is not of the form."""
    root, version, office, kind, computer, verb = _split(subject, 6)
    if f"{root}.{version}" != ROOT or kind != "client":
        raise ValueError("not a subject of a Computer")
    return ClientSubject(OfficeId(decode_name(office)), ComputerName(decode_name(computer)), verb)


def parse_host(subject: str) -> HostSubject:
    """Raises ValueError where the subject is not of the form."""
    root, hosts_token, version, credential, process, verb = _split(subject, 6)
    if f"{root}.{hosts_token}.{version}" != HOSTS:
        raise ValueError("not a subject of a process")
    return HostSubject(CredentialName(decode_name(credential)), ProcessId(process), verb)


def template(subject: str) -> str:
    """The subject with placeholders for the names in it: few enough of them to group by, for traces."""
    parts = subject.split(".")
    if subject.startswith(f"{ROOT}.") and len(parts) > 4:
        parts[2] = "{office}"
        if parts[3] == "client":
            parts[4] = "{computer}"
        elif parts[3] == "server" and len(parts) > 5:
            parts[5] = "{name}"
    elif subject.startswith(f"{HOSTS}.") and len(parts) > 4:
        parts[3:5] = ["{credential}", "{process}"]
    return ".".join(parts)


def queue(subject: str) -> str:
    """The queue group that serves the subject; empty where there is none."""
    parts = subject.split(".")
    if subject.startswith(f"{ROOT}.") and len(parts) > 4:
        return {"client": OWNER_QUEUE, "server": REGISTRY_QUEUE}.get(parts[3], "")
    return REGISTRY_QUEUE if subject.startswith(f"{HOSTS}.") and parts[-1] in {"lease", "assert"} else ""


def verb_of(subject: str) -> str:
    """The last token."""
    return subject.rpartition(".")[2]


def without_verb(subject: str) -> str:
    """All but the last token: of a `client` subject the Computer that is asked."""
    return subject.rpartition(".")[0]


def _split(subject: str, tokens: int) -> list[str]:
    parts = subject.split(".")
    if len(parts) != tokens:
        raise ValueError("a subject of another form")
    return parts
