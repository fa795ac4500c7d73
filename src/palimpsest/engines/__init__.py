"""Engines sample and learn. `protocol` is what the rest of palimpsest knows of them."""
