"""Tools an agent calls: search and its backends."""
