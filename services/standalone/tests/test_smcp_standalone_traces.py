"""The keys of the OpenTelemetry context, which packages that import nothing of each other share."""

from smcp_bus import tracing
from smcp_proto import trace_ids
from smcp_service import telemetry


def test_the_keys_that_requests_set_are_those_that_telemetry_reads() -> None:
    assert telemetry.TRACE_ID_KEY == trace_ids.TRACE_ID_KEY
    assert telemetry.OWN_DECISION_KEY == tracing.OWN_DECISION_KEY
