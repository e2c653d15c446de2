"""Requests from the bus on their way to the dispatcher: a subject's tokens say the event and the caller."""

import logging
from collections.abc import Callable
from typing import cast, get_args

from smcp_bus import registry_contract, subjects
from smcp_bus.bus import Bus, Incoming, Reply, RequestHandler, Subscription
from smcp_bus.dispatch import Answer, Caller, Dispatcher, failed
from smcp_bus.headers import ERROR
from smcp_proto import catalog
from smcp_proto.catalog import Row
from smcp_proto.errors import ErrorBody, ErrorCode
from smcp_proto.member_names import Role, decode_name

_log = logging.getLogger("smcp_bus.requests")

Route = Callable[[str], tuple[Row, Caller]]
"""Reads the row and the caller from a subject; ValueError where it says none."""


def registry_route(subject: str) -> tuple[Row, Caller]:
    """`smcp.v1.<office>.server.<role>.<name>.<verb>`: the caller is the member named in it, to whom nats-server's
    permissions bind the subject."""
    office, role, name, verb = subjects.tokens(subject, subjects.SERVER_ALL)
    if role not in get_args(Role):
        raise ValueError("a subject of no role")
    caller = Caller(role=cast("Role", role), office=decode_name(office), name=decode_name(name))
    return _known(registry_contract.SERVER_ROWS.get(verb) or catalog.by_verb("server", verb)), caller


def computer_route(subject: str) -> tuple[Row, Caller]:
    """`smcp.v1.<office>.client.<computer>.<verb>`: the caller is the office's Agent, vouched for by its gateway."""
    office, _, verb = subjects.tokens(subject, f"{subjects.ROOT}.*.client.*.*")
    row = registry_contract.CLIENT_ROWS.get(verb) or catalog.by_verb("client", verb)
    return _known(row), Caller(role="agent", office=decode_name(office))


def host_route(subject: str) -> tuple[Row, Caller]:
    """`smcp.hosts.v1.<credential>.<process>.<verb>`: the caller is that process (or, for `alive`, the registry)."""
    credential, process, verb = subjects.tokens(subject, f"{subjects.HOSTS}.*.*.*")
    caller = Caller(role="computer", office="", name=decode_name(credential), session=process)
    return _known(registry_contract.HOST_ROWS.get(verb)), caller


def _known(row: Row | None) -> Row:
    if row is None:
        raise ValueError("no such event")
    return row


def request_handler(dispatcher: Dispatcher, route: Route) -> RequestHandler:
    async def handle(incoming: Incoming) -> Reply:
        try:
            row, caller = route(incoming.subject)
        except ValueError:
            _log.warning("a request on a subject of no known form", extra={"subject": incoming.subject})
            return to_reply(failed(ErrorBody(code=ErrorCode.MALFORMED, message="no such event")))
        answer = await dispatcher.dispatch(
            row,
            caller,
            incoming.body,
            deadline=incoming.deadline,
            headers=incoming.headers,
            subject=incoming.subject,
        )
        return to_reply(answer)

    return handle


async def serve_requests(
    bus: Bus, dispatcher: Dispatcher, subject: str, route: Route, *, queue: str = ""
) -> Subscription:
    return await bus.serve(subject, request_handler(dispatcher, route), queue=queue)


def to_reply(answer: Answer) -> Reply:
    if answer.error is None:
        return Reply(answer.body, answer.headers)
    return Reply(answer.body, {**answer.headers, ERROR: str(answer.error)})
