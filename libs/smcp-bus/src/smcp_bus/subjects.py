"""Every subject of the system, and requests on their way from one to the dispatcher: the tokens say event and caller.

    smcp.v1.<office>.client.<computer>.<verb>           request   gateway → the owner of that Computer
    smcp.v1.<office>.server.<role>.<name>.<verb>        request   a member → registry (queue group `registry`)
    smcp.v1.<office>.notify.<verb>                      publish   registry only → everyone in the office
    smcp.v1.<office>.audit.<kind>                       publish   records of what was decided → a JetStream stream
    smcp.hosts.v1.<credential>.<process>.<verb>         request   a process's lease, its members; `alive` asked of it
    smcp.operators.v1.<credential>.<verb>               request   an operator → registry, which only reads
    smcp.admin.v1.log_level                             request   an operator → each process

Names stand encoded in them (`smcp_proto.member_names`), so each is one token.
"""

import logging
from functools import lru_cache
from typing import Final

from smcp_bus import registry_contract
from smcp_bus.bus import NO_HEADERS, Headers, Incoming, Reply, RequestHandler, Subscription, once_connected
from smcp_bus.callers import Caller, from_headers
from smcp_bus.dispatch import Answer, Dispatcher, failed
from smcp_bus.headers import ERROR, RIGHTS, SUBJECT
from smcp_bus.nats.bus import Bus
from smcp_proto import catalog
from smcp_proto.catalog import Row
from smcp_proto.errors import ErrorBody, ErrorCode
from smcp_proto.member_names import Role, decode_name, encode_name

_log = logging.getLogger("smcp_bus.subjects")

ROOT: Final = "smcp.v1"
HOSTS: Final = "smcp.hosts.v1"
OPERATORS: Final = "smcp.operators.v1"

OWNER_QUEUE: Final = "owner"
REGISTRY_QUEUE: Final = "registry"

SERVER_ALL: Final = f"{ROOT}.*.server.*.*.*"
"""The pattern that registries serve: every `server:*` event of every member."""
HOSTS_LEASE_ALL: Final = f"{HOSTS}.*.*.lease"
HOSTS_GATEWAY_LEASE_ALL: Final = f"{HOSTS}.*.*.gateway_lease"
"""Only gateways may publish here: what they say of their sockets sends clients of other gateways away."""
HOSTS_ASSERT_ALL: Final = f"{HOSTS}.*.*.assert"
OPERATORS_ALL: Final = f"{OPERATORS}.*.*"
LOG_LEVEL: Final = "smcp.admin.v1.log_level"
"""Each process serves it. nats-server lets operators alone publish here."""


@lru_cache(maxsize=4096)
def client(office: str, computer: str, verb: str) -> str:
    """Ask the owner of a Computer."""
    return f"{ROOT}.{encode_name(office)}.client.{encode_name(computer)}.{verb}"


def client_all(office: str, computer: str) -> str:
    """The pattern that the owner of a Computer serves."""
    return client(office, computer, "*")


def server(office: str, role: Role, name: str, verb: str) -> str:
    """Ask the registry, as a member (or as one who wants to become one)."""
    return f"{ROOT}.{encode_name(office)}.server.{role}.{encode_name(name)}.{verb}"


def notify(office: str, verb: str) -> str:
    """Subject of a notification to an office."""
    return f"{ROOT}.{encode_name(office)}.notify.{verb}"


def notify_all(office: str) -> str:
    return notify(office, "*")


AUDIT_ALL: Final = f"{ROOT}.*.audit.*"
"""Every record of the audit trail (`smcp_bus.audit`), one or more in a message."""
NO_OFFICE: Final = "="
"""The subject token for records without an office. No office name encodes to it."""
AUDIT_OF_SEVERAL: Final = f"{ROOT}.{NO_OFFICE}.audit.{NO_OFFICE}"
"""The subject of a message with records of several offices or kinds, one in each line."""


def audit(office: str, kind: str) -> str:
    """The subject of records of the audit trail, of one office and kind; `office` may be empty."""
    return f"{ROOT}.{encode_name(office) if office else NO_OFFICE}.audit.{kind}"


def hosts(credential: str, process: str, verb: str) -> str:
    """Ask the registry about a process of that credential (`lease`, `gateway_lease`, `assert`), or the process itself
    (`alive`)."""
    return f"{HOSTS}.{encode_name(credential)}.{process}.{verb}"


def operators(credential: str, verb: str) -> str:
    """Ask the registry as an operator (`offices`, `room`, `records`)."""
    return f"{OPERATORS}.{encode_name(credential)}.{verb}"


def destination(subject: str) -> tuple[str, str]:
    """For traces: the subject with placeholders for its names, and the queue group that serves it, if any."""
    match subject.split("."):
        case ["smcp", "v1", _, "client", _, verb]:
            return f"{ROOT}.{{office}}.client.{{computer}}.{verb}", OWNER_QUEUE
        case ["smcp", "v1", _, "server", role, _, verb]:
            return f"{ROOT}.{{office}}.server.{role}.{{name}}.{verb}", REGISTRY_QUEUE
        case ["smcp", "v1", _, prefix, verb]:
            return f"{ROOT}.{{office}}.{prefix}.{verb}", ""
        case ["smcp", "hosts", "v1", _, _, verb]:
            return f"{HOSTS}.{{credential}}.{{process}}.{verb}", "" if verb == "alive" else REGISTRY_QUEUE
        case ["smcp", "operators", "v1", _, verb]:
            return f"{OPERATORS}.{{credential}}.{verb}", REGISTRY_QUEUE
    return subject, ""


def verb_of(subject: str) -> str:
    """The last token."""
    return subject.rpartition(".")[2]


def route(subject: str, headers: Headers = NO_HEADERS) -> tuple[Row, Caller]:
    """The event of a request and its caller, to whom nats-server's permissions bind the subject.

    Raises ValueError: the subject says none.
    """
    match subject.split("."):
        case ["smcp", "v1", office, "server", ("agent" | "computer") as role, name, verb]:
            prefix, caller = "server", Caller(role, decode_name(office), decode_name(name))
        case ["smcp", "v1", office, "client", _, verb] if SUBJECT in headers or RIGHTS in headers:
            prefix, caller = "client", from_headers(headers, decode_name(office))
        case ["smcp", "v1", office, "client", _, verb]:  # the office's Agent; without authentication no more is known
            prefix, caller = "client", Caller("agent", decode_name(office))
        case ["smcp", "hosts", "v1", credential, process, verb]:  # that process; of `alive` the registry
            prefix, caller = "hosts", Caller("computer", "", decode_name(credential), session=process)
        case ["smcp", "operators", "v1", credential, verb]:
            prefix, caller = "operators", Caller(None, "", decode_name(credential))
        case _:
            raise ValueError("a subject of no known form")
    row = registry_contract.ROWS.get((prefix, verb)) or catalog.by_verb(prefix, verb)
    if row is None:
        raise ValueError("a subject of no known event")
    return row, caller


def request_handler(dispatcher: Dispatcher) -> RequestHandler:
    async def handle(incoming: Incoming) -> Reply:
        try:
            row, caller = route(incoming.subject, incoming.headers)
        except ValueError:
            _log.debug("a request on a subject of no known form", extra={"subject": incoming.subject})
            refusal = ErrorBody(code=ErrorCode.MALFORMED, message="unknown event", details={"field": ""})
            return to_reply(failed(refusal))
        answer = await dispatcher.dispatch(
            row,
            caller,
            incoming.body,
            deadline=incoming.deadline,
            headers=incoming.headers,
            subject=incoming.subject,
            note=incoming.note,
        )
        return to_reply(answer)

    return handle


async def serve_requests(bus: Bus, dispatcher: Dispatcher, subject: str) -> Subscription:
    """Serve a subject from the start of a process on."""
    return await once_connected(lambda: bus.serve(subject, request_handler(dispatcher)))


def to_reply(answer: Answer) -> Reply:
    return Reply(answer.body, {} if answer.error is None else {ERROR: str(answer.error)})
