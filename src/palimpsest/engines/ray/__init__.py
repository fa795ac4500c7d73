"""Learners and samplers in Ray processes, on one machine or many (docs/how-to/multi-gpu.md)."""
