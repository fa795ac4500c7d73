"""Problems: readers of published formats, long-context assembly, the synthetic default."""
