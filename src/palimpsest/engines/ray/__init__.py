"""Learners and samplers in processes of their own, on one machine or many, by Ray (docs/cluster.md)."""
