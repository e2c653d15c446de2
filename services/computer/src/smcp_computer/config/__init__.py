"""The configuration file: reading, checks, placeholders and redaction."""
