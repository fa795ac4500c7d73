"""A model behind an OpenAI-compatible address, which any policy plays on."""
