"""Data set jobs: build, generate, convert, filter, download, inspect."""
