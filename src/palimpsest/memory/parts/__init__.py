"""Components shared by memory policies."""
