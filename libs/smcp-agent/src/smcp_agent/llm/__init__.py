"""The office's tools as tools of an LLM API."""
