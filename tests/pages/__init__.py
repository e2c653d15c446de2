"""The Markdown pages: what they name exists, and what they show runs."""
