"""Evaluation runs, logs, reports and plots."""
