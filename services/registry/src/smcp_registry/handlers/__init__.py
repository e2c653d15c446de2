"""What the registry answers, by kind of asker."""
