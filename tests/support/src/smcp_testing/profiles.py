"""How many examples hypothesis tries: `ci` (the default of `make test`) is short, `soak` is long, `mutants` shortest.

Chosen by the variable `HYPOTHESIS_PROFILE`. This is a pytest plug-in of its own (`-p smcp_testing.profiles`).
"""

import os
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings

DEFAULT = "ci"


def pytest_configure(config: pytest.Config) -> None:
    """Register the profiles and load the one that `HYPOTHESIS_PROFILE` names."""
    # The machines of CI are shared: an example may be slow, and says nothing about the code by it.
    calm = [HealthCheck.too_slow]
    settings.register_profile(
        "ci", max_examples=30, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=calm
    )
    # Each of thousands of mutants is tried with all tests, until one fails.
    settings.register_profile(
        "mutants", max_examples=20, stateful_step_count=10, deadline=None, derandomize=True, suppress_health_check=calm
    )
    settings.register_profile(
        "dev", max_examples=50, stateful_step_count=20, deadline=timedelta(seconds=5), suppress_health_check=calm
    )
    settings.register_profile(
        "soak", max_examples=1000, stateful_step_count=100, deadline=None, suppress_health_check=calm
    )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", DEFAULT))


def scaled(*, ci: int, soak: int) -> int:
    """A count of a test's own: small in `make test`, full in `make soak`."""
    return soak if os.environ.get("HYPOTHESIS_PROFILE", DEFAULT) == "soak" else ci
