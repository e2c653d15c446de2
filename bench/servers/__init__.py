"""The peers: each a process of its own that prints the port it listens on."""
