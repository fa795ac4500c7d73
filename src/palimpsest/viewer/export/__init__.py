"""Exports: a page that opens without a server, a log of inspect's."""
