"""The whole system as its users run it: worlds, actors, and scenarios that hold in every world."""
