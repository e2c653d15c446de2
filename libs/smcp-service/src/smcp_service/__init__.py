"""The frame of every process: lifecycle, settings, telemetry, logging and health. It knows nothing of the domain."""
