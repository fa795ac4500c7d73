"""Layouts of data files: published, ours and custom."""
