"""What the registry answers, one verb per file."""
