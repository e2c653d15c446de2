"""No call is lost while gateways and registries are restarted: the load, the restarts, and what is checked of it."""
