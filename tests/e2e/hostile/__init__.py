"""Hostile guests: what they send, and what that costs the others."""
