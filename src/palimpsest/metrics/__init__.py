"""What a memory kept, lost and invented, per turn and per episode."""
