"""How the system is started: the same parts, in one process or in many."""
