"""Who may connect: API keys and JWTs, what they allow, and how often an address may be wrong."""
