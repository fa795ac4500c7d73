"""Learners and samplers in Ray processes, on one machine or many (docs/cluster.md)."""
