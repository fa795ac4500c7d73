"""Training jobs: reinforcement learning, supervised training, resuming."""
