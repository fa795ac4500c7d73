"""Exports: a page that opens without a server, and a log for inspect."""
