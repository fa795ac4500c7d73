"""Typed configuration: one model per part; unknown keys are rejected; runs store the resolved result."""
