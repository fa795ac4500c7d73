"""Episodes and groups, retries and time limits, segments, the record on disk."""
