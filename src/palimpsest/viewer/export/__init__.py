"""Exports: a page that opens without a server, JSON lines, a log of inspect's."""
