"""Servers over HTTP: an agent behind OpenAI's interface, retrieval, the viewer."""
