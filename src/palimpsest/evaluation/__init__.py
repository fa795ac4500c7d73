"""Evaluation runs, their logs, statistics and comparisons."""
