"""The bus over nats-server."""
