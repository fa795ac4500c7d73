"""The learner's packed prefix forest: layout, attention, log-probabilities."""
