"""The configuration file: reading, checks and placeholders."""
