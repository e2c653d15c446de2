"""How much and how often: what bounds one client."""
