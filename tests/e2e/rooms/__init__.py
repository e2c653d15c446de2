"""Rooms under concurrency: plans of what members do and what is hurt, run in a world, and the checks of its history."""
