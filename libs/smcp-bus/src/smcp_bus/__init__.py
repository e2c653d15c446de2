"""The A2C-SMCP contract over NATS. Services use `nats.bus.Bus`; `bus` has its messages and errors."""
