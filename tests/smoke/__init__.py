"""The whole system in `make test`: one world of processes, our SDK, and the common faults."""
