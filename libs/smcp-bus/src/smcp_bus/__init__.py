"""The A2C-SMCP contract over NATS; services are written against `bus.Bus`."""
