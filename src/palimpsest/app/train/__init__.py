"""Training jobs: reinforcement learning, supervised, resumed."""
