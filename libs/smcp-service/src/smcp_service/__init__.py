"""The frame of every process: lifecycle, settings, telemetry, logging and health. It knows nothing of the domain.

structlog is imported here without rich: it would take 4 MB of each process for tracebacks in colour.
"""

import sys

if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment] # an import of it fails
    import structlog  # noqa: F401

    del sys.modules["rich"]
