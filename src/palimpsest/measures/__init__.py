"""What a memory kept, lost and invented; of steps and of episodes."""
