"""The loop, the loss, supervised cold start, checkpoints."""
