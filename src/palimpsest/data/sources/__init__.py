"""Problem sources of training and evaluation, as pure functions of (seed, split, step, round)."""
