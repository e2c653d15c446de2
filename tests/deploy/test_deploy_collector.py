"""The configuration of an OpenTelemetry Collector that ships: whole in itself, and it keeps what gateways keep."""

from pathlib import Path
from typing import Any

import yaml

from smcp_service.telemetry import SLOW_S

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "otel-collector" / "tail-sampling.yaml"


def read() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    return found


def test_its_pipeline_names_what_it_defines_and_samples_before_it_batches() -> None:
    configuration = read()
    (pipeline,) = configuration["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(configuration[kind])
    processors = pipeline["processors"]
    assert processors.index("memory_limiter") < processors.index("tail_sampling") < processors.index("batch")


def test_it_keeps_failed_traces_and_those_that_are_slow_by_the_default_of_the_services() -> None:
    policies = {policy["type"]: policy for policy in read()["processors"]["tail_sampling"]["policies"]}
    assert policies["status_code"]["status_code"] == {"status_codes": ["ERROR"]}
    assert policies["latency"]["latency"] == {"threshold_ms": SLOW_S * 1000}
    assert 0 < policies["probabilistic"]["probabilistic"]["sampling_percentage"] < 100
