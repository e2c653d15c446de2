"""The registry: keeps the members of offices in JetStream KV."""
