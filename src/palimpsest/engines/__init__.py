"""Engines sample and learn. The rest of palimpsest knows only `protocol`."""
