"""The names of OpenTelemetry's context and trace state, which packages that import nothing of each other share."""

from smcp_bus import request_spans
from smcp_proto import catalog
from smcp_service import telemetry
from smcp_service.telemetry import RequestTracerProvider, sampler_from


def test_the_keys_that_requests_set_are_those_that_telemetry_reads() -> None:
    assert telemetry.TRACE_ID_KEY == catalog.TRACE_ID_KEY


def test_the_provider_of_a_process_takes_the_spans_of_requests() -> None:
    assert isinstance(RequestTracerProvider(sampler_from({})), request_spans.Recorder)
