"""The Computers whose sockets this gateway holds."""
