"""A Computer on Socket.IO: the same handlers, reached by a gateway's address and a token."""
