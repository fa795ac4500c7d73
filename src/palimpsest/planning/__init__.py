"""Predicts tokens, memory and time of a training run, and chooses a layout for its GPUs."""
