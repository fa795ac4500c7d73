"""The sampler: continuous batching, radix cache, draws."""
