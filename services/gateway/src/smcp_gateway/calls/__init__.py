"""Calls on their way to Computers, and what ends them."""
