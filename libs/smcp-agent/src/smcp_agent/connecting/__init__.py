"""Connections to gateways, and a membership that survives broken ones."""
