"""Reading the `OTEL_*` variables."""

from collections.abc import Mapping

from smcp_service.logging import get_logger


def value_of(environ: Mapping[str, str], variable: str) -> str:
    """The variable's value, in lower case; empty where it is not set."""
    return environ.get(variable, "").strip().lower()


def otlp_over_grpc(environ: Mapping[str, str], signal: str) -> bool:
    """Whether OTLP goes over gRPC, by the variable of a signal (`TRACES`, `METRICS`), or that of all; else by HTTP."""
    variables = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    variable = next((each for each in variables if value_of(environ, each)), variables[-1])
    protocol = value_of(environ, variable)
    if protocol not in {"", "grpc", "http/protobuf"}:
        warn_of(variable, protocol, "http/protobuf")
    return protocol == "grpc"


def warn_of(variable: str, value: str, instead: str) -> None:
    """Say that a value is not known, and what is done instead."""
    get_logger(__name__).warning("telemetry setting is not known", variable=variable, value=value, instead=instead)
