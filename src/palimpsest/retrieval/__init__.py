"""Indexes, their backends, and clients of a retrieval server."""
