"""A memory agent behind an OpenAI-compatible server."""
