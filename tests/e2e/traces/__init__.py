"""What a request looks like in a tracing backend."""
