"""Servers: retrieval over a corpus."""
