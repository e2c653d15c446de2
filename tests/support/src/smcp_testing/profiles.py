"""How many examples hypothesis tries: `ci` (the default of `make test`) is short, `soak` is long.

Chosen by the variable `HYPOTHESIS_PROFILE`.
"""

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings

DEFAULT = "ci"


def register() -> None:
    """Register the profiles and load the one that `HYPOTHESIS_PROFILE` names; call it from the root conftest."""
    # The machines of CI are shared: an example may be slow, and says nothing about the code by it.
    calm = [HealthCheck.too_slow]
    settings.register_profile(
        "ci", max_examples=100, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=calm
    )
    settings.register_profile(
        "dev", max_examples=50, stateful_step_count=20, deadline=timedelta(seconds=5), suppress_health_check=calm
    )
    settings.register_profile(
        "soak", max_examples=5000, stateful_step_count=100, deadline=None, suppress_health_check=calm
    )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", DEFAULT))
