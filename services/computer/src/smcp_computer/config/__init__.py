"""What the user configured: the file, its placeholders, and what of it may be shown."""
