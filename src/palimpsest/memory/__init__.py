"""Memory policies: each builds the prompts of an episode."""
