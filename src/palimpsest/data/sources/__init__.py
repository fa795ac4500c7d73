"""Where training and evaluation get their problems, as a pure function of (seed, split, step, round)."""
