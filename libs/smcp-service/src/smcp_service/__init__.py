"""What every process needs, and that knows nothing of what it does: lifecycle, settings, telemetry, logging, health."""
