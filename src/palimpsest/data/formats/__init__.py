"""Layouts of data files: published ones, ours, and those of a user's own."""
