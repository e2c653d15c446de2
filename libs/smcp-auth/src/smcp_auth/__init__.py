"""Authentication of clients: API keys, JWTs, their grants, and the throttle of failed logins."""
