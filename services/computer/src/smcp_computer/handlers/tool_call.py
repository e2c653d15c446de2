"""`client:tool_call`: one tool, run once, with one answer."""

import asyncio
from typing import Any, Final

from smcp_bus.dispatch import Call, RawJson
from smcp_bus.time_limit import time_limit
from smcp_computer import results
from smcp_computer.confirmation import Confirmation
from smcp_computer.handlers.call_log import CallRecord
from smcp_computer.in_flight import InFlight
from smcp_computer.mcp.errors import AnswerTooLarge, ServerError
from smcp_computer.mcp.sdk import CallSpan
from smcp_computer.metrics import CallEnded
from smcp_computer.resources.errors import too_large
from smcp_computer.resources.history import History
from smcp_computer.tools import Catalogue
from smcp_proto.errors import SmcpError, TooLarge
from smcp_proto.schemas.tools import ToolCallReq

MCP_GRACE_S: Final = 5.0
"""The MCP request's own time-out lies so much later than the call's, which cancels it."""


class ToolCalls:
    """Args:
    history: told of the server of each call that is run.
    max_body: bytes that an answer may have on the bus.
    trace_content: whether traces show arguments and results.
    ended: told of each call how it ended.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        in_flight: InFlight,
        confirmation: Confirmation,
        history: History,
        *,
        max_body: int,
        trace_content: bool = False,
        ended: CallEnded = lambda outcome, seconds: None,
    ) -> None:
        self._catalogue = catalogue
        self._in_flight = in_flight
        self._confirmation = confirmation
        self._history = history
        self._max_body = max_body
        self._trace_content = trace_content
        self._ended = ended

    async def __call__(self, request: ToolCallReq, call: Call) -> RawJson:
        """Run the tool, or join the call that runs it.

        Raises:
            Malformed: the `req_id` was used for another call.
            Unavailable: see `CallRecords.replay`.
            TooLarge: the result is larger than the bus takes.
        """
        office = call.caller.office or ""
        limit = time_limit(request.timeout, call.deadline - asyncio.get_running_loop().time())
        labels = {"smcp.req_id": request.req_id, "smcp.office": office}
        span = CallSpan(labels, content=self._trace_content)
        record = CallRecord(request.tool_name, request.agent)

        def broken_off(why: str) -> None:
            span.failed(why)
            record.broken_off(why)

        def timed_out(tool: str, seconds: float) -> dict[str, Any]:
            return results.not_confirmed(tool, seconds) if record.asking else results.timed_out(tool, seconds)

        try:
            body = await self._in_flight.call(
                (office, request.agent, request.req_id),
                request.tool_name,
                request.params,
                limit=limit,
                run=lambda: self._run(request, limit, span, record),
                broken_off=broken_off,
                timed_out=timed_out,
                repeat=request.a2c_repeat,
            )
            if len(body) > self._max_body:
                raise TooLarge("the result is too large", details={"size": len(body), "limit": self._max_body})
        except SmcpError as error:
            record.ended(str(error.code), str(error))
            raise
        finally:
            record.log()
            self._ended(record.outcome, record.seconds)
        return RawJson(body)

    async def _run(self, request: ToolCallReq, limit: float, span: CallSpan, record: CallRecord) -> dict[str, Any]:
        name = request.tool_name
        record.ended("aborted")
        target = self._catalogue.find(name)
        if target is None:
            refused = self._refused(name)
            record.ended("refused", refused["content"][0]["text"])
            return refused
        record.server = target.ref.server
        record.asking = True
        refusal = await self._confirmation.refusal(
            target.ref,
            agent=request.agent,
            auto_apply=target.configured.auto_apply if target.configured else None,
            params=request.params,
        )
        record.asking = False
        if refusal is not None:
            record.ended("refused", refusal)
            return results.failed(f"the tool {name!r} {refusal}")
        self._history.called(target.ref.server)
        try:
            result = await target.supervisor.call(
                target.ref.tool, request.params, timeout=limit + MCP_GRACE_S, span=span
            )
        except AnswerTooLarge as error:
            raise too_large(error) from None
        except ServerError as error:
            record.ended("failed", str(error))
            return results.failed(str(error))
        except TimeoutError:
            record.ended("timeout")
            return results.timed_out(name, limit)
        record.ended("tool_error" if result.get("isError") is True else "ok")
        return results.to_wire(result)

    def _refused(self, name: str) -> dict[str, Any]:
        if self._catalogue.is_forbidden(name):
            return results.forbidden(name)
        others = self._catalogue.candidates(name)
        hint = f"; it is listed as {' and '.join(map(repr, others))}" if others else ""
        return results.failed(f"this Computer has no tool {name!r}{hint}")
