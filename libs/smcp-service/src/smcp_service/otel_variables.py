"""Reading the `OTEL_*` variables."""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from smcp_service.logging import get_logger

_ENDPOINTS: Final = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "TRACES",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "TRACES",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "METRICS",
}
"""Where a collector is, and the signal whose protocol says how that is written."""


def value_of(environ: Mapping[str, str], variable: str) -> str:
    """The variable's value, in lower case; empty where it is not set."""
    return environ.get(variable, "").strip().lower()


def otlp_over_grpc(environ: Mapping[str, str], signal: str) -> bool:
    """Whether OTLP goes over gRPC, by the variable of a signal (`TRACES`, `METRICS`), or that of all; else by HTTP."""
    variable, protocol = _protocol(environ, signal)
    if protocol not in {"", "grpc", "http/protobuf"}:
        warn_of(variable, protocol, "http/protobuf")
    return protocol == "grpc"


def wrong_endpoints(environ: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the addresses of collectors: a sentence for each, with its variable. Over gRPC all go."""
    if value_of(environ, "OTEL_SDK_DISABLED") == "true":
        return
    for variable, signal in _ENDPOINTS.items():
        value = environ.get(variable, "").strip()
        if value and _protocol(environ, signal)[1] != "grpc" and not _is_a_url(value):
            yield f"{variable}: must be a URL, such as http://collector:4318"


def _protocol(environ: Mapping[str, str], signal: str) -> tuple[str, str]:
    """The variable that says the protocol, and what it says."""
    variables = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    variable = next((each for each in variables if value_of(environ, each)), variables[-1])
    return variable, value_of(environ, variable)


def _is_a_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        return False


def warn_of(variable: str, value: str, instead: str) -> None:
    """Say that a value is not known, and what is done instead."""
    get_logger(__name__).warning("telemetry setting is not known", variable=variable, value=value, instead=instead)
