"""Reading the `OTEL_*` variables."""

from collections.abc import Mapping

from smcp_service.logging import get_logger


def value_of(environ: Mapping[str, str], variable: str) -> str:
    """The variable's value, in lower case; empty where it is not set."""
    return environ.get(variable, "").strip().lower()


def warn_of(variable: str, value: str, instead: str) -> None:
    """Say that a value is not known, and what is done instead."""
    get_logger(__name__).warning("telemetry setting is not known", variable=variable, value=value, instead=instead)
