"""The configurations of an OpenTelemetry Collector that ship: whole in themselves, and one keeps what gateways keep."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from smcp_service.settings import ServiceSettings

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "deploy" / "otel-collector" / "tail-sampling.yaml"
COMPOSE = ROOT / "docker" / "compose" / "collector.yaml"


def read(path: Path = CONFIGURATION) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def test_its_pipeline_names_what_it_defines_and_samples_before_it_batches() -> None:
    configuration = read()
    (pipeline,) = configuration["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(configuration[kind])
    processors = pipeline["processors"]
    assert processors.index("memory_limiter") < processors.index("tail_sampling") < processors.index("batch")


@pytest.mark.parametrize("path", [CONFIGURATION, COMPOSE], ids=lambda path: path.name)
def test_it_opens_no_port_that_our_services_do_not_use(path: Path) -> None:
    configuration = read(path)
    assert configuration["receivers"]["otlp"]["protocols"].keys() == {"http"}
    receivers = {kind: set(each["receivers"]) for kind, each in configuration["service"]["pipelines"].items()}
    assert [kind for kind, names in receivers.items() if "otlp" in names] == ["traces"]


def test_it_keeps_failed_traces_and_those_that_are_slow_by_the_default_of_the_services() -> None:
    policies = {policy["type"]: policy for policy in read()["processors"]["tail_sampling"]["policies"]}
    assert policies["status_code"]["status_code"] == {"status_codes": ["ERROR"]}
    assert policies["latency"]["latency"] == {
        "threshold_ms": ServiceSettings.model_fields["trace_slow_s"].default * 1000
    }
    assert 0 < policies["probabilistic"]["probabilistic"]["sampling_percentage"] < 100
