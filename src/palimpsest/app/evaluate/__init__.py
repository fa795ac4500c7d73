"""Evaluation jobs: evaluate, rescore, compare, calibrate a judge, probe lengths."""
