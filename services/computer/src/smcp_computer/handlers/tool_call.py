"""`client:tool_call`: one tool, run once, with one answer."""

import asyncio
import logging
from typing import Any, Final

from smcp_bus.dispatch_types import Call, RawJson
from smcp_bus.time_limit import time_limit
from smcp_computer.confirmation import Confirmation
from smcp_computer.in_flight import InFlight
from smcp_computer.mcp.call_span import CallSpan
from smcp_computer.mcp.errors import ServerError
from smcp_computer.tools import result as results
from smcp_computer.tools.catalogue import Catalogue
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.tools import ToolCallReq

_log = logging.getLogger("smcp_computer.tool_call")

REPEAT: Final = "a2c_repeat"
"""An extra field of a request, true where the same request may have arrived before; no part of what is asked for."""

MCP_GRACE_S: Final = 5.0
"""The MCP request's own time-out lies so much later than the call's, which cancels it."""


class ToolCalls:
    """Args:
    max_body: bytes that an answer may have on the bus.
    trace_content: whether traces show arguments and results.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        in_flight: InFlight,
        confirmation: Confirmation,
        *,
        max_body: int,
        trace_content: bool = False,
    ) -> None:
        self._catalogue = catalogue
        self._in_flight = in_flight
        self._confirmation = confirmation
        self._max_body = max_body
        self._trace_content = trace_content

    async def __call__(self, request: ToolCallReq, call: Call) -> RawJson:
        """Run the tool, or join the call that runs it.

        Raises:
            Malformed: the `req_id` was used for another call.
            Unavailable: a repeat (`a2c_repeat`) of a call that is not known here; `details.may_have_run` is true.
            TooLarge: the result is larger than the bus takes.
        """
        office = call.caller.office or ""
        limit = time_limit(request.timeout, call.deadline - asyncio.get_running_loop().time())
        labels = {"smcp.req_id": request.req_id, "smcp.office": office}
        span = CallSpan(labels, content=self._trace_content)
        body = await self._in_flight.call(
            (office, request.agent, request.req_id),
            request.tool_name,
            request.params,
            limit=limit,
            run=lambda: self._run(request, limit, span),
            broken_off=span.failed,
            repeat=(request.model_extra or {}).get(REPEAT) is True,
        )
        if len(body) > self._max_body:
            raise TooLarge("the result is too large", details={"size": len(body), "limit": self._max_body})
        return RawJson(body)

    async def _run(self, request: ToolCallReq, limit: float, span: CallSpan) -> dict[str, Any]:
        name = request.tool_name
        target = self._catalogue.find(name)
        if target is None:
            return results.failed(self._why_not(name))
        refusal = await self._confirmation.refusal(
            target.ref,
            agent=request.agent,
            auto_apply=target.configured.auto_apply if target.configured else None,
            params=request.params,
        )
        if refusal is not None:
            return results.failed(f"the tool {name!r} {refusal}")
        try:
            result = await target.supervisor.call(
                target.ref.tool, request.params, timeout=limit + MCP_GRACE_S, span=span
            )
        except ServerError as error:
            _log.info("a call failed: %s", error)
            return results.failed(str(error))
        except TimeoutError:
            return results.timed_out(name, limit)
        return results.to_wire(result)

    def _why_not(self, name: str) -> str:
        if self._catalogue.is_forbidden(name):
            return f"the tool {name!r} is forbidden on this Computer"
        others = self._catalogue.candidates(name)
        hint = f"; it is listed as {' and '.join(map(repr, others))}" if others else ""
        return f"this Computer has no tool {name!r}{hint}"
