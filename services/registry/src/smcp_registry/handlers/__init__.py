"""Handlers of the registry's requests."""
