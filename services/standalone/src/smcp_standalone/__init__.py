"""The command `smcp`: the whole system in one process with its own nats-server."""
