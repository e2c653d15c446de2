"""Members and offices as this gateway knows them."""
