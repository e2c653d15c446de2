"""The Socket.IO Computers of this gateway: they are served on NATS like native Computers."""
