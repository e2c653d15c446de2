"""How a process asks the registries, and keeps its lease."""
