"""Sampler and learner in this process: PyTorch on a CPU or one GPU, weights shared."""
