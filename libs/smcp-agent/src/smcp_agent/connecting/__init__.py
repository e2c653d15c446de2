"""From the addresses of gateways to a place in an office that survives broken connections."""
