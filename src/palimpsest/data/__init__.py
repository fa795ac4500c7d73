"""Problems: readers of published formats, long contexts, synthetic problems, and where training gets them from."""
