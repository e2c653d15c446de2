"""Sockets of clients: Socket.IO and engine.io, fitted to a server of many."""
