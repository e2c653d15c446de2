"""The door on the bus: a subject's tokens say the row and the caller, the payload is the event's JSON."""

import logging
from collections.abc import Callable

from smcp_bus import registry_contract, subjects
from smcp_bus.bus import Bus, Incoming, Reply, RequestHandler, Subscription
from smcp_bus.door.dispatch import Door, failed
from smcp_bus.door.types import Answer, Caller
from smcp_bus.headers import ERROR
from smcp_proto import catalog
from smcp_proto.catalog_row import Row
from smcp_proto.errors import ErrorBody, ErrorCode

_log = logging.getLogger("smcp_bus.door.serving")

Route = Callable[[str], tuple[Row, Caller]]
"""Reads the row and the caller from a subject; ValueError where it says none."""


def registry_route(subject: str) -> tuple[Row, Caller]:
    """`smcp.v1.<office>.server.<role>.<name>.<verb>`: the caller is the member named in it."""
    parsed = subjects.parse_server(subject)
    row = registry_contract.SERVER_ROWS.get(parsed.verb) or catalog.by_verb("server", parsed.verb)
    return _known(row), Caller(role=parsed.role, office=parsed.office, name=parsed.name)


def computer_route(subject: str) -> tuple[Row, Caller]:
    """`smcp.v1.<office>.client.<computer>.<verb>`: the caller is the office's Agent, vouched for by its gateway."""
    parsed = subjects.parse_client(subject)
    row = registry_contract.CLIENT_ROWS.get(parsed.verb) or catalog.by_verb("client", parsed.verb)
    return _known(row), Caller(role="agent", office=parsed.office)


def host_route(subject: str) -> tuple[Row, Caller]:
    """`smcp.hosts.v1.<credential>.<process>.<verb>`: the caller is that process (or, for `alive`, the registry)."""
    parsed = subjects.parse_host(subject)
    row = registry_contract.HOST_ROWS.get(parsed.verb)
    return _known(row), Caller(role="computer", office="", name=parsed.credential, session=parsed.process)


def request_handler(door: Door, route: Route) -> RequestHandler:
    """The handler that puts a door behind a subject."""

    async def handle(incoming: Incoming) -> Reply:
        try:
            row, caller = route(incoming.subject)
        except ValueError:
            _log.warning("a request on a subject of no known form", extra={"subject": incoming.subject})
            return to_reply(failed(ErrorBody(code=ErrorCode.MALFORMED, message="no such event")))
        answer = await door.dispatch(
            row,
            caller,
            incoming.body,
            deadline=incoming.deadline,
            headers=incoming.headers,
            subject=incoming.subject,
        )
        return to_reply(answer)

    return handle


async def serve_door(bus: Bus, door: Door, subject: str, route: Route, *, queue: str = "") -> Subscription:
    """Serve `subject` with what is behind `door`."""
    return await bus.serve(subject, request_handler(door, route), queue=queue)


def to_reply(answer: Answer) -> Reply:
    """A plain success carries no headers."""
    if answer.error is None:
        return Reply(answer.body, answer.headers)
    return Reply(answer.body, {**answer.headers, ERROR: str(answer.error)})


def _known(row: Row | None) -> Row:
    if row is None:
        raise ValueError("no such event")
    return row
