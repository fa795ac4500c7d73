"""Model folders: lookup, verification and inspection before loading."""
