"""Typed configuration: one model per part, unknown keys refused, the resolved result written with the run."""
