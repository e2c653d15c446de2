"""The keys of the OpenTelemetry context, which packages that import nothing of each other share."""

from smcp_bus import late_spans, tracing
from smcp_proto import trace_ids
from smcp_service import telemetry


def test_the_keys_that_requests_set_are_those_that_telemetry_reads() -> None:
    assert telemetry.TRACE_ID_KEY == trace_ids.TRACE_ID_KEY
    assert telemetry.OWN_DECISION_KEY == tracing.OWN_DECISION_KEY
    assert telemetry.SPAN_ID_KEY == late_spans.SPAN_ID_KEY
    assert telemetry.KEPT_KEY == late_spans.KEPT_KEY
    assert telemetry.STATE_KEY == late_spans.STATE_KEY
