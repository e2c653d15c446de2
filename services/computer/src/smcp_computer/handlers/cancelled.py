"""`notify:tool_call_cancel`: an Agent of the office does not want a call any more."""

import logging

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Incoming
from smcp_computer.in_flight import InFlight
from smcp_proto.schemas.base import AgentCallData
from smcp_proto.trace_ids import trace_id
from smcp_service.logging import bind_call

_log = logging.getLogger("smcp_computer.cancelled")

CANCEL_VERB = "tool_call_cancel"


async def cancelled(incoming: Incoming, *, office: str, in_flight: InFlight) -> None:
    """Cancel the call if it runs here; everybody in the office hears of every cancel, and other notifications too."""
    if subjects.verb_of(incoming.subject) != CANCEL_VERB:
        return
    try:
        notice = AgentCallData.model_validate_json(incoming.body)
    except ValidationError:
        _log.warning("a cancel that cannot be read was ignored")
        return
    cancel(notice, office=office, in_flight=in_flight)


def cancel(notice: AgentCallData, *, office: str, in_flight: InFlight) -> None:
    """Cancel the call that the notice names, if it runs here."""
    if in_flight.cancel((office, notice.agent, notice.req_id)):
        ids = trace_id(office, notice.agent, notice.req_id)
        with bind_call(req_id=notice.req_id, office=office, trace_id=ids):
            _log.info("a call was cancelled")
