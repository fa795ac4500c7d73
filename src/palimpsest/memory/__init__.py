"""Memory policies: each decides what the next prompt is, and nothing else."""
