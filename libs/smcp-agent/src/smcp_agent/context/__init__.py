"""Desktops, documents and resources: what Computers have beside tools."""
