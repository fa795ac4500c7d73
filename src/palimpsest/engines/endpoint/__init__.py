"""A model behind an OpenAI-compatible address, usable by any policy."""
