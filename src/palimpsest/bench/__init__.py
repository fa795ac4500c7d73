"""Measurements against other engines; `palimpsest bench` and the scripts under benchmarks/ call them."""
