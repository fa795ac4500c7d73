"""Problems generated from a seed: documents, search problems, bAbI-like stories, changing facts, RULER."""
