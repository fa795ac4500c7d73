"""Evaluation jobs: evaluate, regrade, compare, calibrate a judge, probe lengths."""
