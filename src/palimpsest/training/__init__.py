"""The training loop: collect a batch, learn from it, measure the step. `supervised` is the cold start."""
